"""`zinf doctor` from beginning to end: look, judge, print."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.console import Console

from zcompiler.cli.doctor.judge.all import judge, usable
from zcompiler.cli.doctor.look import PROBES, look
from zcompiler.cli.doctor.report import as_json, report
from zcompiler.progress import progress


def doctor(*, nvme: Sequence[str], json_wanted: bool, console: Console, errors: Console) -> bool:
    """Whether zinf works here; `console` gets what there is to say, `errors` what is being looked at.

    OptionError for a path that is none.
    """
    with progress("looking at this machine", PROBES, console=errors) as advance:
        groups = judge(look(nvme, os.environ, lambda: advance(1)))
    if json_wanted:
        console.print(as_json(groups), markup=False, highlight=False, soft_wrap=True)
    else:
        report(groups, console)
    return usable(groups)
