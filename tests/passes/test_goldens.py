"""Every `<pass>/<sentence>.zsched` here is a specification: its header's passes turn the first half into the second."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from zcompiler.cli.opt import opt, read_golden
from zcompiler.passes.pipeline import PASSES, parse_pipeline, print_pipeline
from zcompiler.schedule.graph import to_graph, to_schedule
from zcompiler.schedule.text import parse_schedule, print_schedule

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
GOLDENS = sorted(HERE.rglob("*.zsched"))


@pytest.mark.parametrize("path", GOLDENS, ids=lambda p: str(p.relative_to(HERE).with_suffix("")))
def test_golden(path: Path) -> None:
    golden = read_golden(path.read_text())
    assert golden.expected is not None, f"{path} has no '# ----' line"
    result = "\n".join(line for line in opt(path).splitlines() if not line.startswith("#")) + "\n"
    if result != golden.expected:
        name = path.relative_to(ROOT)
        diff = "".join(
            difflib.unified_diff(
                golden.expected.splitlines(keepends=True), result.splitlines(keepends=True), f"{name} (expected)", "now"
            )
        )
        pytest.fail(f"{diff}\nIf this is what it should be: zinf opt --accept {name}", pytrace=False)


@pytest.mark.parametrize("path", GOLDENS, ids=lambda p: str(p.relative_to(HERE).with_suffix("")))
def test_golden_text_and_graph_carry_the_same_schedule(path: Path) -> None:
    golden = read_golden(path.read_text())
    assert golden.expected is not None
    assert print_pipeline(parse_pipeline(golden.passes)) == golden.passes
    schedule = parse_schedule(golden.expected)
    assert print_schedule(schedule) == golden.expected
    graph = to_graph(schedule)
    graph.lint()
    assert to_schedule(graph) == schedule
    graph.eliminate_dead_code()
    assert to_schedule(graph) == schedule


@pytest.mark.parametrize("kind", PASSES, ids=lambda k: k.name)
def test_each_pass_has_goldens_of_both_sorts(kind: type) -> None:
    names = [p.stem for p in GOLDENS if p.parent.name == kind.name]
    negative = [n for n in names if n.startswith("not-")]
    assert len(names) - len(negative) >= 3 and len(negative) >= 2
