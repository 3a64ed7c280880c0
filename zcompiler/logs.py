"""What zinf logs: decisions (info) and stages with their seconds (debug), below the logger `zinf`; quiet unless asked.

Importing adds no handler. A program that has set up logging has the lines where it wants them; for one that has not,
the environment variable ZINF_LOGS is enough.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from zcompiler.errors import ZinfError, did_you_mean

VARIABLE = "ZINF_LOGS"
LEVELS = {"info": logging.INFO, "debug": logging.DEBUG}


def start_logging(environ: Mapping[str, str], logger: logging.Logger) -> None:
    """Do what ZINF_LOGS says, once: set the level of `logger`, and write to stderr if nobody listens yet.

    ZinfError for a value that it cannot take.
    """
    wanted = environ.get(VARIABLE, "")
    if not wanted or logger.level != logging.NOTSET:
        return
    if wanted.lower() not in LEVELS:
        known = " or ".join(f'"{name}"' for name in LEVELS)
        raise ZinfError(f"{VARIABLE} cannot be {wanted!r}{did_you_mean(wanted, LEVELS)}; it takes {known}")
    logger.setLevel(LEVELS[wanted.lower()])
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(name)s: %(message)s", "%H:%M:%S"))
        logger.addHandler(handler)


@contextmanager
def stage(name: str, clock: Callable[[], float] = time.perf_counter) -> Iterator[None]:
    """Logs how long what is done inside has taken, also when it fails."""
    logger = logging.getLogger("zinf.stages")
    if not logger.isEnabledFor(logging.DEBUG):
        yield
        return
    began, how = clock(), "failed after"
    try:
        yield
        how = "took"
    finally:
        logger.debug("%s %s %.3f s", name, how, clock() - began)
