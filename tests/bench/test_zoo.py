"""The zoo: what makes a model worse turns it red and is named; its base is the same from every process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench.turns import ROOT
from bench.zoo.base import HERE, Base, read_base, versions, write_base
from bench.zoo.described import described
from bench.zoo.gate import judged, updated
from bench.zoo.models import ZOO
from tests.bench.small_zoo import CASES, SMALL, sides
from tests.compare.test_gate import with_ops
from zcompiler.compare.metrics import Side
from zcompiler.errors import BadInput, DoesNotFit
from zcompiler.passes.base import Pass
from zcompiler.passes.keep_last_unit import KeepLastUnit
from zcompiler.passes.offload_activations import OffloadActivations
from zcompiler.passes.prefetch_reads import PrefetchReads
from zcompiler.schedule.memory import peak
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.verify import verify

Case = tuple[str, str]
MIDDLE = ("small", "middle")
PAGE = (ROOT / "docs" / "zoo.md").read_text()
SHOWN = [line for line in PAGE.splitlines() if line.startswith("small ")]


@pytest.fixture(scope="module")
def small() -> dict[Case, Side]:
    return sides()


@pytest.fixture(scope="module")
def base(small: dict[Case, Side], tmp_path_factory: pytest.TempPathFactory) -> Base:
    folder = tmp_path_factory.mktemp("base")
    assert len(write_base(small, folder)) == len(CASES)
    return read_base(CASES, folder)


def with_graph(small: dict[Case, Side], case: Case, change: Callable[[Schedule], Schedule]) -> dict[Case, Side]:
    """The zoo with another graph in one case."""
    schedules = dict(small[case].schedules)
    schedules["graph0"] = change(schedules["graph0"])
    assert verify(schedules["graph0"]) == []
    return {**small, case: replace(small[case], schedules=schedules)}


def test_what_has_not_changed_is_green(base: Base, capsys: pytest.CaptureFixture[str]) -> None:
    assert judged(described(SMALL), base)
    out = capsys.readouterr().out
    assert all(" ".join(case) in " ".join(out.split()) for case in CASES) and "worse" not in out


@pytest.mark.parametrize(
    ("switched_off", "named"),
    [
        (PrefetchReads, "small middle: exposed on laptop"),
        (KeepLastUnit, "small least: nvme_read"),
        (OffloadActivations, "small least: runs"),
    ],
)
def test_a_pass_that_is_switched_off_turns_it_red(
    switched_off: type[Pass],
    named: str,
    base: Base,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(switched_off, "apply", lambda self, graph, facts: None)
    assert not judged(described(SMALL), base)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(named)]
    assert lines and any(op in lines[0] for op in ("read ", "run(", "run "))
    assert [line for line in SHOWN if line.startswith(named) and line not in lines] == []


def test_one_more_read_a_layer_turns_it_red(
    small: dict[Case, Side], base: Base, capsys: pytest.CaptureFixture[str]
) -> None:
    def more(schedule: Schedule) -> Schedule:
        for region in schedule.regions:
            read = next((op for op in region.ops if op.kind == "read" and not op.for_region), None)
            if read is not None:
                index = region.ops.index(read)
                gone = replace(read, kind="release", form="full", src="host", dst="", after=())
                schedule = with_ops(schedule, region.name, {index: (read, gone, read)})
        return schedule

    changed = with_graph(small, ("small", "least"), more)
    assert not judged(changed.items(), base)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("small least: nvme_read"))
    assert "read " in line and " was not there before" in line


def test_a_peak_that_is_one_percent_higher_turns_it_red(
    small: dict[Case, Side], base: Base, capsys: pytest.CaptureFixture[str]
) -> None:
    def higher(schedule: Schedule) -> Schedule:
        most, where = peak(schedule)["host"]
        (region,) = (r for r in schedule.regions if where.endswith(f"@{r.name}"))
        (index,) = (i for i, op in enumerate(region.ops) if op.kind == "run")
        run = region.ops[index]
        return with_ops(schedule, region.name, {index: (replace(run, work=run.work + most // 100),)})

    changed = with_graph(small, ("small", "all"), higher)
    assert not judged(changed.items(), base)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("small all: "))
    assert line.startswith("small all: peak host (graph0) +") and "at run(" in line and "temporaries (+" in line


def test_a_limit_that_no_longer_does_turns_it_red(
    small: dict[Case, Side], base: Base, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = DoesNotFit("memory=3MiB is too small: at run(fwd/8)@fwd/8", 4 << 20)
    assert not judged({**small, MIDDLE: refusal}.items(), base)
    assert "small middle: memory=3MiB is too small: at run(fwd/8)@fwd/8" in capsys.readouterr().out


def test_another_torch_than_the_bases_is_told_beside_what_is_worse(
    small: dict[Case, Side], base: Base, capsys: pytest.CaptureFixture[str]
) -> None:
    old = replace(base, made_with={**base.made_with, "torch": "2.0.0"})
    assert judged(small.items(), old)
    assert "torch" not in capsys.readouterr().out
    assert not judged({**small, MIDDLE: DoesNotFit("no", 1)}.items(), old)
    assert f"The base is of torch 2.0.0, transformers {versions()['transformers']}, " in capsys.readouterr().out


@pytest.mark.full
def test_the_base_is_the_same_from_another_process_with_another_hash_seed(
    small: dict[Case, Side], tmp_path: Path
) -> None:
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    command = [sys.executable, "-m", "tests.bench.small_zoo", str(tmp_path / "there")]
    environ = {**os.environ, "PYTHONHASHSEED": seed}
    run = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    write_base(small, tmp_path / "here")
    here, there = ({f.name: f.read_bytes() for f in (tmp_path / way).rglob("*.*")} for way in ("here", "there"))
    assert here == there and len(here) == len(CASES) + 1
    assert write_base(small, tmp_path / "there") == []


def test_what_was_not_written_or_was_merged_wrongly_is_no_base(small: dict[Case, Side], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such base; make it: python -m bench.zoo --update"):
        read_base(CASES, tmp_path)
    assert updated(small.items(), tmp_path)
    with pytest.raises(BadInput, match="no base for other-all"):
        read_base([("other", "all")], tmp_path)
    figures = tmp_path / "baseline.json"
    figures.write_text(figures.read_text().replace('"runs": ', '"runs": 1'))
    with pytest.raises(BadInput, match=r"is not what small-.* says"):
        read_base(CASES, tmp_path)


def test_the_checked_in_base_has_every_case_of_the_zoo_and_is_small() -> None:
    cases = [(kind.name, limit.name) for kind in ZOO for limit in kind.limits]
    assert list(read_base(cases).sides) == cases
    assert len(list((HERE / "schedules").iterdir())) == len(cases)
    files = [f for f in HERE.rglob("*") if f.is_file() and f.suffix != ".pyc"]
    assert sum(f.stat().st_size for f in files) < 1 << 20


def test_the_page_has_every_model_with_its_limits() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("| `")]
    rows = [[cell.strip("` ") for cell in line.split("|")[1:-1]] for line in lines]
    assert [(name, *its) for name, _, *its in rows] == [(k.name, *(limit.memory for limit in k.limits)) for k in ZOO]
    assert len(SHOWN) == 2
