"""`zinf diff`: what it prints, its statuses, and that a file which is no schedule is one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli.test_app import run_main
from tests.compare.texts import ONE_RANK, TIMES, golden
from zcompiler.cli.app import app

STEP = str(golden(ONE_RANK))
PLAIN = str(golden(ONE_RANK, without="prefetch-reads"))


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    a, b = tmp_path / "a.zsched", tmp_path / "b.zsched"
    a.write_text(PLAIN)
    b.write_text(STEP)
    return str(a), str(b)


def diff(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["diff", *arguments])
    return result.exit_code, result.output


def test_what_differs_and_what_it_costs(files: tuple[str, str]) -> None:
    status, shown = diff(*files)
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert status == 1
    assert "> nvme_read read l1: fwd/l1 -> fwd/l0" in lines
    assert any(line.startswith("peak host (b) ") and line.endswith("%)") for line in lines)
    assert any(line.startswith("exposed on laptop ") and " -" in line for line in lines)
    assert not any(line.startswith("nvme_read ") for line in lines), "a read that moved costs no bytes"
    assert "a text has no FLOPs" in shown


def test_other_names_and_another_order_of_the_header_are_status_0(files: tuple[str, str]) -> None:
    text = STEP.replace("x1", "addmm").replace("l2", "head")
    head, body = text.split("\n\n", 1)
    plan, values = head.splitlines()[:4], head.splitlines()[4:]
    Path(files[0]).write_text("\n".join([*plan, *reversed(values)]) + "\n\n" + body)
    status, shown = diff(*files)
    assert status == 0
    assert "names differ, which makes no difference: " in shown and "addmm is x1" in shown
    assert shown.endswith("Equal: only names or the order of the header differ, which mean nothing.\n")
    assert diff(files[1], files[1])[1].endswith("Equal.\n")


def test_unified_is_a_diff_of_the_texts(files: tuple[str, str]) -> None:
    status, shown = diff("--unified", *files)
    assert status == 1 and "\n+  nvme_read  read           l1 nvme->host for fwd/l1\n" in shown
    assert diff("-u", files[0], files[0]) == (0, "")


def test_json_says_the_same(files: tuple[str, str]) -> None:
    status, shown = diff("--json", *files)
    found = json.loads(shown)
    assert status == 1 and found["equal"] is False
    moved = {"what": "op", "how": "moved", "name": "nvme_read read l1", "before": "fwd/l1", "after": "fwd/l0"}
    assert moved in found["schedules"]["b"]["changes"]
    (read,) = [m for m in found["metrics"] if (m["kind"], m["of"]) == ("bytes", "nvme_read")]
    assert read["before"] == read["after"] == 5 * 2048


def test_folders_are_compared_by_the_names_of_their_files(tmp_path: Path) -> None:
    for side, step in (("old", PLAIN), ("new", STEP)):
        (tmp_path / side / "graph0").mkdir(parents=True)
        (tmp_path / side / "graph0" / "00-bare.zsched").write_text("what a pass left on the way is not read")
        (tmp_path / side / "graph0" / "01-final.zsched").write_text(step)
    (tmp_path / "new" / "graph1.zsched").write_text(STEP)
    status, shown = diff(str(tmp_path / "old"), str(tmp_path / "new"))
    assert status == 1 and "+ schedule graph1" in shown and "graph0: " in shown and "peak host (graph1)" in shown


def test_two_files_are_compared_whatever_they_are_called_and_do(files: tuple[str, str]) -> None:
    update = TIMES / "update.zsched"
    status, shown = diff(files[0], str(update))
    assert status == 1 and shown.startswith("update: ") and "- region fwd/l0" in shown and "+ region update/l0" in shown


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "a.zsched: No such file or directory; name a .zsched file, a folder of them, or a base"),
        (
            "zsched 1\nplan p rank=0\n",
            "a.zsched: line 2: 'plan p rank=0': expected one line 'plan NAME rank=R world=W'",
        ),
        (f"{PLAIN}# ----\n{PLAIN}", "(# ----) parts two schedules, as in a golden"),
        (PLAIN.replace("read           l0", "read           gone"), "no value gone here"),
    ],
)
def test_a_file_that_is_no_schedule_is_one_error_and_status_2(
    text: str | None,
    said: str,
    files: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path(files[0]).unlink()
    if text is not None:
        Path(files[0]).write_text("\n".join(s for s in text.splitlines() if not s.startswith(("  live", "peak"))))
    assert run_main(monkeypatch, "diff", *files) == 2
    said_so = capsys.readouterr()
    assert said in said_so.err and files[0] in said_so.err and said_so.out == ""


def test_a_folder_without_schedules_and_a_binary_file_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    binary = tmp_path / "x.zsched"
    binary.write_bytes(b"\xff\xfe\x00")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert run_main(monkeypatch, "diff", str(empty), str(binary)) == 2
    assert "no .zsched file in this folder; the option dump writes them" in capsys.readouterr().err
    assert run_main(monkeypatch, "diff", str(binary), str(empty)) == 2
    assert "it is not UTF-8 text" in capsys.readouterr().err


def test_torch_is_not_imported(files: tuple[str, str]) -> None:
    code = "import sys; from zcompiler.cli.diff import diff; from pathlib import Path; "
    code += f"diff(*map(Path, {files!r})); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
