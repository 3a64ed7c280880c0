"""The command: load the target, describe it, print it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zcompiler.cli.dump.target import Wanted, load
from zcompiler.describe.describe import describe


def dump(wanted: Wanted, options: Mapping[str, Any]) -> str:
    """What `zinf dump` prints. ZinfError for what is not there, OptionError, DoesNotFit."""
    target = load(wanted)
    found = describe(
        target.model,
        target.inputs,
        loss=target.loss,
        optimizer=target.optimizer,
        options=options,
        train=wanted.train,
    )
    return str(found)
