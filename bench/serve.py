"""The child's half of a benchmark: a process that answers each command on stdin with one JSON line on stdout."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any


def serve(prepare: Callable[[dict[str, Any]], Mapping[str, Callable[[], dict[str, Any]]]]) -> None:
    """Hand `prepare` the settings (argv[1], JSON), say that all is ready, then answer until stdin ends.

    What `prepare` returns are the commands by name. An error ends the process with its traceback on stderr.
    """
    # Libraries print to stdout as they like; the parent must see our lines only.
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    commands = prepare(json.loads(sys.argv[1]))
    print(json.dumps({"ready": True}), file=lines)
    for word in sys.stdin:
        print(json.dumps(commands[word.strip()]()), file=lines)
