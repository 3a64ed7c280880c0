"""The decisions of a run in words, for the log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from zcompiler.plan.plan import Plan, describe
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.sizes import format_bytes

if TYPE_CHECKING:
    from zcompiler.training.session import Session

_PLAN = logging.getLogger("zinf.plan")


def tell_session(session: Session) -> None:
    """The limit, the folders and the machine that models of these options share."""
    options = session.options
    folders = ", ".join(map(str, options.nvme))
    _PLAN.info(
        "memory=%s nvme=%s compute=%s machine=%s",
        format_bytes(options.memory),
        folders,
        session.compute,
        session.machine,
    )


def tell_graph(plan: Plan, schedule: Schedule, taken: int, session: Session) -> None:
    """Where the states of a graph rest and what it will hold; at debug also why. `taken`: bytes that others hold."""
    if not _PLAN.isEnabledFor(logging.INFO):
        return
    _PLAN.info(
        "%s: %s; at most %s of %s, prefetch %s",
        schedule.name,
        describe(plan.placement) if plan.placement else "no parameters",
        format_bytes(plan.peak[session.compute_tier] + taken),
        format_bytes(session.options.memory),
        format_bytes(plan.prefetch),
    )
    for reason in plan.reasons:
        _PLAN.debug("%s: %s", schedule.name, reason)
    _PLAN.debug("%s: pipeline %s", schedule.name, plan.pipeline)


def tell_update(optimizer: str, parameters: int, subgroups: int, why_not_late: str) -> None:
    when = f"in step(), because {why_not_late}" if why_not_late else "beside the next forward"
    logging.getLogger("zinf.update").info(
        "%s updates %d parameters in %d sub-groups, %s", optimizer, parameters, subgroups, when
    )
