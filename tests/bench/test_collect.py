"""make bench: lines are kept, go on where they were cut, and become a table and pictures between the page's marks."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from bench import record
from bench.collect import runs
from bench.collect.__main__ import PAGE, collect
from bench.collect.page import END, START, write_page
from bench.collect.runs import RUNS, code, is_done, read_lines, run
from bench.collect.table import rows
from bench.turns import ROOT
from tests.bench.sample_lines import write, write_all
from zcompiler.errors import BadInput

MARKS = f"# A page\n\n{START}old\n{END}\n\nThe rest.\n"
ANSWER = """
import json, sys
bounds = {"at_least": None, "at_most": 1.0, "judged": True}
print(json.dumps({"bench": "late", "question": "is it so", "measured": 0.5, **bounds, "holds": True}))
print("a table", sys.argv[1:])
open("ran", "a").write("x")
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "docs" / "page.md"
    path.parent.mkdir()
    path.write_text(MARKS)
    return path


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which `make bench` finds its scripts, empty."""
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "bench").mkdir()
    return tmp_path / "bench"


def found(page: Path) -> list[list[str]]:
    """The rows of its table."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_every_benchmark_has_a_script_and_stands_in_the_page() -> None:
    assert [name for name in RUNS if not (ROOT / "bench" / f"{name}.py").exists()] == []
    text = PAGE.read_text()
    assert [name for name in RUNS if f"| `python -m bench.{name}` |" not in text] == []
    assert text.count(START) == text.count(END) == 1


def test_each_answer_is_a_row_with_what_is_allowed(tmp_path: Path, page: Path) -> None:
    write_all(tmp_path / "results")
    write_page(read_lines(tmp_path / "results"), page)
    step = "`bench.step --rounds 4 --rate 500`"
    assert found(page)[:3] == [
        ["step, update late, over a step in memory", "1.38", "at most 1.30", "**no**", step],
        ["step, over one with late=False", "0.87", "at most 0.88", "yes", "`bench.late --pairs 4`"],
        ["step, over what was predicted", "1.14", "0.80 to 1.25", "yes", "`bench.curve --rate 500`"],
    ]
    assert found(page)[-1] == ["rate \\| mixed", "0.99", "", "", "`bench.store --rounds 5`"]
    assert "\n\nA processor, 2 cores, 24 GiB, torch 2.13.0; commit 012345678, 2026-01-31.\n\n" in page.read_text()


def test_rows_of_several_commits_say_which_is_whose(tmp_path: Path, page: Path) -> None:
    write(tmp_path / "results", "late", [])
    write(tmp_path / "results", "limits", [], commit="f" * 40 + "+changed")
    write_page(read_lines(tmp_path / "results"), page)
    machine = "A processor, 2 cores, 24 GiB, torch 2.13.0"
    assert (
        f"\nlate: {machine}; commit 012345678, 2026-01-31.\n\nlimits: {machine}; commit fffffffff+" in page.read_text()
    )


def test_what_could_not_be_run_or_answered_nothing_does_not_hold(tmp_path: Path) -> None:
    write(tmp_path, "late", [], ended=2, error="no disk")
    write(tmp_path, "limits", [{"moved": 1.0, "at_least": 1.0, "memory": "1GiB"}])
    late, limits = rows(read_lines(tmp_path))
    assert late.cells() == ("could not be run: no disk", "", "", "**no**", "`bench.late --pairs 4`")
    assert limits.question == "it ended, and answered nothing" and not limits.holds


def test_the_page_has_the_pictures_and_the_same_lines_give_the_same_files(tmp_path: Path, page: Path) -> None:
    write_all(tmp_path / "results")
    files = []
    for _ in range(2):
        write_page(read_lines(tmp_path / "results"), page)
        files.append({file.name: file.read_bytes() for file in page.parent.rglob("*.*")})
    assert files[0] == files[1] and set(files[0]) == {"page.md", "curve.svg", "limits.svg", "step.svg"}
    text = page.read_text()
    assert text.startswith("# A page\n\n") and text.endswith("\n\nThe rest.\n") and "\nold\n" not in text
    assert text.count("](bench/") == 3
    drawn = files[0]["curve.svg"].decode()
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert [word for word in ("measured", "predicted", "torch.compile", "0.49", "0.98") if word not in drawn] == []
    for name in ("limits.svg", "step.svg"):
        assert ElementTree.fromstring(files[0][name]).tag.endswith("svg")


def test_without_lines_the_page_says_so(page: Path) -> None:
    write_page({}, page)
    assert "\n(Not measured yet.)\n" in page.read_text() and list(page.parent.iterdir()) == [page]


def test_one_that_fails_stops_no_other_and_what_has_ended_is_not_run_again(
    scripts: Path, tmp_path: Path, page: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (scripts / "late.py").write_text(ANSWER)
    (scripts / "step.py").write_text("raise SystemExit('ValueError: no such disk')")
    (scripts / "fits.py").write_text("import sys\nprint('no cgroup here', file=sys.stderr)\nsys.exit(2)")
    results = tmp_path / "results"
    for times in (1, 2):
        collect(("fits", "late"), results, page, tmp_path, again=False)
        assert (tmp_path / "ran").read_text() == "x"
        fits, late = found(page)
        assert fits[0] == "could not be run: no cgroup here" and fits[3] == "**no**"
        assert late[:4] == ["is it so", "0.50", "at most 1.00", "yes"]
        said = capfd.readouterr()
        assert "no cgroup here" in said.err and ("bench.late --pairs 4: kept" in said.out) is (times == 2)
    collect(("late",), results, page, None, again=True)
    assert (tmp_path / "ran").read_text() == "xx" and len(found(page)) == 2
    assert "a table ['--pairs', '4']" in capfd.readouterr().out


def test_what_was_asked_otherwise_or_of_other_code_is_run_again(tmp_path: Path) -> None:
    write(tmp_path, "late", [], code=code())
    assert is_done("late", tmp_path) and not is_done("step", tmp_path)
    for other in ({"code": "another"}, {"code": code(), "ended": 2}, {"code": code(), "spec": "--pairs 1"}):
        write(tmp_path, "late", [], **other)
        assert not is_done("late", tmp_path)


def test_code_is_named_by_what_is_measured_and_not_by_commits_of_other_things(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "ROOT", tmp_path)

    def git(*words: str) -> None:
        who = ("-c", "user.name=n", "-c", "user.email=e")
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True)

    for folder in ("bench", "runtime_ext", "zcompiler", "docs"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text("one")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "m")
    first = code()
    (tmp_path / "docs" / "file").write_text("two")
    git("commit", "-qam", "m")
    assert code() == first
    (tmp_path / "bench" / "file").write_text("two")
    assert code() != first


class _Interrupting(io.StringIO):
    """Output during which somebody presses Ctrl-C."""

    def write(self, text: str) -> int:
        if "now" in text:
            raise KeyboardInterrupt
        return len(text)


def test_a_run_that_is_cut_ends_its_benchmark_and_keeps_the_lines_of_the_last(scripts: Path, tmp_path: Path) -> None:
    code = "import json, os, signal\nprint(json.dumps({'pid': os.getpid()}))\nprint('now', flush=True)\nsignal.pause()"
    (scripts / "late.py").write_text(code)
    results = tmp_path / "results"
    write(results, "late", [{"old": 1}])
    before = read_lines(results)
    with pytest.raises(KeyboardInterrupt), contextlib.redirect_stdout(_Interrupting()):
        run("late", results, None)
    assert read_lines(results) == before
    (line,) = (results / "late.jsonl.part").read_text().splitlines()
    with pytest.raises(ProcessLookupError):
        os.kill(json.loads(line)["pid"], 0)


def test_a_line_says_what_was_asked_but_no_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "--nvme", "/some/where", "--nvme=/x", "--rounds", "2"])
    record.provenance.cache_clear()
    held = [record.verdict("x", "a ratio", 1.2, **bounds) for bounds in ({}, {"at_least": 1.2}, {"at_most": 1.1})]
    record.provenance.cache_clear()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert held == [line["holds"] for line in lines] == [True, True, False]
    assert [line["judged"] for line in lines] == [False, True, True]
    line = lines[0]
    assert line["spec"] == "--rounds 2" and line["cores"] > 0 and line["memory_bytes"] > 1 << 30 and line["cpu"]
    assert not record.verdict("x", "a ratio", 1.0, at_most=1.0, also=False)


def test_marks_that_are_missing_or_twice_are_an_error_before_anything_is_run(scripts: Path, tmp_path: Path) -> None:
    (scripts / "late.py").write_text(ANSWER)
    file = tmp_path / "page.md"
    for text in ("no marks\n", MARKS + MARKS, f"{END}\n{START}"):
        file.write_text(text)
        with pytest.raises(BadInput, match="once each and in this order"):
            collect(("late",), tmp_path / "results", file, None, again=True)
        assert file.read_text() == text and not (tmp_path / "ran").exists()
