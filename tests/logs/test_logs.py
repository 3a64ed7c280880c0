"""What is logged, at which level, and that nothing is unless it is asked for."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import zcompiler
from tests.training.pair import pair
from zcompiler.errors import ZinfError
from zcompiler.logs import stage, start_logging

ON_NVME = {"params": "nvme", "optimizer": "nvme"}


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def said(caplog: pytest.LogCaptureFixture, logger: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == logger]


def test_decisions_are_logged_once_and_the_step_stays_the_same(disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "zinf")
    made = pair(disk, place=ON_NVME, steps=3)
    first, graph = said(caplog, "zinf.plan")
    assert first.startswith("memory=") and f" nvme={disk} compute=eager machine=laptop (" in first
    assert graph.startswith("graph0: params=nvme grads=host optimizer=nvme; at most ")
    forward, backward = said(caplog, "zinf.compile")
    assert forward.startswith("graph0: forward has ") and backward.startswith("graph0: backward has ")
    assert "compute=eager made " in forward
    at_once, late = said(caplog, "zinf.update")
    assert at_once.startswith("AdamW updates ") and "in step(), because it is the first" in at_once
    assert late.endswith("beside the next forward")
    assert said(caplog, "zinf.stages") == []
    caplog.clear()
    made.goes_on()
    assert caplog.records == []


def test_stages_have_their_seconds_at_debug(disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "zinf")
    made = pair(disk, place=ON_NVME, steps=1)
    zcompiler.restore(made.ours.module)
    lines = said(caplog, "zinf.stages")
    for name in ("graph0: capture took ", "graph0: plan took ", "graph0: passes took ", "graph0: compile fwd/"):
        assert any(line.startswith(name) for line in lines)
    assert any("of parameters to nvme took " in line for line in lines)
    assert lines[-1].startswith("restore of ") and lines[-1].endswith(" s")
    assert any("prefetch" in line for line in said(caplog, "zinf.plan")[2:])


def test_why_an_update_is_not_late(disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "zinf")
    pair(disk, place=ON_NVME, late=False)
    (line,) = said(caplog, "zinf.update")
    assert line.endswith("in step(), because the option late says so")


def test_nothing_is_said_by_default(disk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pair(disk, place=ON_NVME)
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("zinf").handlers == [] and logging.getLogger("zinf").level == logging.NOTSET


def alone() -> logging.Logger:
    """A logger that belongs to nothing, so that nobody listens to it."""
    return logging.Logger("zinf")


def test_the_variable_adds_one_handler_and_sets_the_level(capfd: pytest.CaptureFixture[str]) -> None:
    logger = alone()
    for _ in range(2):
        start_logging({"ZINF_LOGS": "info"}, logger)
    assert len(logger.handlers) == 1
    logger.info("seen")
    logger.debug("not seen")
    _, err = capfd.readouterr()
    assert err.endswith(" zinf: seen\n") and err.count("\n") == 1


def test_without_the_variable_nothing_is_touched() -> None:
    for environ in ({}, {"ZINF_LOGS": ""}):
        logger = alone()
        start_logging(environ, logger)
        assert (logger.handlers, logger.level) == ([], logging.NOTSET)


def test_handlers_and_levels_of_the_program_count() -> None:
    logger, heard = alone(), io.StringIO()
    logger.addHandler(logging.StreamHandler(heard))
    start_logging({"ZINF_LOGS": "DEBUG"}, logger)
    logger.debug("a line")
    assert heard.getvalue() == "a line\n" and len(logger.handlers) == 1
    logger.setLevel(logging.ERROR)
    start_logging({"ZINF_LOGS": "debug"}, logger)
    assert logger.level == logging.ERROR


def test_a_value_that_is_none_is_one_clear_error() -> None:
    with pytest.raises(ZinfError, match=r"ZINF_LOGS cannot be 'debgu' \(did you mean \"debug\"\?\); it takes \"info\""):
        start_logging({"ZINF_LOGS": "debgu"}, alone())


def test_a_stage_that_fails_says_so_and_raises(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "zinf.stages")
    times = iter([1.0, 3.5, 10.0, 10.25])
    with pytest.raises(KeyError), stage("reading", lambda: next(times)):
        raise KeyError("gone")
    with stage("writing", lambda: next(times)):
        pass
    assert said(caplog, "zinf.stages") == ["reading failed after 2.500 s", "writing took 0.250 s"]
