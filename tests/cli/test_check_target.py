"""`zinf check` of a model: planned from its shapes, it fails where a change makes the step worse, and only there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tests.cli.test_app import run_main
from zcompiler.cli import run_target
from zcompiler.cli.app import app
from zcompiler.cli.run_target import PEAK, STEP
from zcompiler.compare.files import read_side

MODEL = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(256, 1024)
        self.down = nn.Linear(1024, 256)

    def forward(self, x):
        hidden = torch.relu(self.up(x))
        return x + self.down(hidden)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def model():
    return Model()


def inputs():
    return (torch.zeros(ROWS, 256),)
"""
OPTIONS = ("--memory", "10MiB", "--compute", "eager", "--place", "params=nvme", "--tile", "blocks.*.up=4")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`model.py` and its base in the current folder."""
    monkeypatch.chdir(tmp_path)
    write(MODEL)
    assert check("--update") == (0, "base.json: written, 2 schedules\n")
    yield
    torch._dynamo.reset()


def write(text: str, rows: int = 64) -> None:
    Path("model.py").write_text(text.replace("ROWS", str(rows)))


def check(*more: str, options: tuple[str, ...] = OPTIONS) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["check", "model.py", *options, *more, "--against", "base.json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def said(shown: str, metric: str) -> str:
    """The line that says why a metric is worse."""
    return next(line for line in shown.splitlines() if line.startswith(f"{metric} ") and ": " in line)


def test_an_unchanged_model_passes_and_its_base_has_the_work_of_its_runs() -> None:
    status, shown = check()
    assert status == 0 and shown.startswith("No worse than base.json, in ")
    base = json.loads(Path("base.json").read_text())
    assert base["works"]["graph0"]["fwd/blocks.0.up/0"].startswith("f32[64,256,256]")
    assert base["metrics"]["compiled regions"] < base["metrics"]["runs"]


def test_other_names_and_another_order_of_the_source_are_no_change() -> None:
    text = MODEL.replace("hidden", "wide").replace("self.up", "self.first")
    classes = text.index("class Block"), text.index("class Model"), text.index("def model")
    head, block, model, functions = (text[a:b] for a, b in zip((0, *classes), (*classes, len(text)), strict=True))
    write(head + functions + "\n\n" + model + block)
    renamed = tuple(word.replace("blocks.*.up", "blocks.*.first") for word in OPTIONS)
    status, shown = check(options=renamed)
    assert status == 0 and shown.startswith("No worse than base.json, in ")


def test_without_prefetch_computing_waits_for_a_read_that_is_named() -> None:
    status, shown = check("--prefetch", "0")
    assert status == 1
    line = said(shown, "exposed on laptop")
    assert " for read blocks." in line and "which stood in " in line
    *_, diff, last = shown.splitlines()
    assert diff.startswith("Every op that differs: zinf dump model.py --memory 10MiB --machine laptop ")
    assert diff.endswith(" --output NEW && zinf diff base.json NEW")
    assert last.startswith("If this is what it should be: zinf check model.py --memory 10MiB --place params=nvme ")
    assert " --prefetch 0 --compute eager --against base.json --update" in last


def test_without_tiles_a_read_moves_more_at_once() -> None:
    status, shown = check(options=OPTIONS[:-2])
    assert status == 1
    assert "peak host (graph0) " in shown and "by read blocks." in said(shown, "peak host (graph0)")


def test_with_more_tokens_the_peak_says_at_which_op_what_is_held() -> None:
    write(MODEL, rows=128)
    status, shown = check()
    assert status == 1
    assert ": at run(" in said(shown, "peak host (graph0)") and "held more: " in said(shown, "peak host (graph0)")


def test_a_layer_that_is_unlike_the_others_is_compiled_on_its_own() -> None:
    write(
        MODEL.replace("return x + self.down(hidden)", "return x + self.down(hidden) * self.scale").replace(
            "for block in self.blocks:", "for i, block in enumerate(self.blocks):\n            block.scale = 1.0 + i"
        )
    )
    status, shown = check()
    assert status == 1 and "compiled regions " in shown


def test_a_folder_that_dump_writes_is_the_same_step() -> None:
    result = CliRunner().invoke(app, ["dump", "model.py", *OPTIONS, "--machine", "laptop", "--output", "out"])
    assert result.exit_code == 0
    assert read_side([Path("out")]).schedules == read_side([Path("base.json")]).schedules
    for command in (["check", "out", "--against", "base.json"], ["diff", "base.json", "out"]):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == "Equal."


def test_a_base_that_lacks_the_work_of_a_run_is_refused() -> None:
    base = json.loads(Path("base.json").read_text())
    del base["works"]["graph0"]["fwd/blocks.0"]
    Path("base.json").write_text(json.dumps(base))
    result = CliRunner().invoke(app, ["diff", "base.json", "base.json"])
    assert '"works" does not say what run(fwd/blocks.0) in fwd/blocks.0 of graph0 is' in str(result.exception)


@pytest.mark.parametrize("train", [pytest.param(True, marks=pytest.mark.full), False])
def test_a_run_is_compared_with_the_run_of_the_base(train: bool, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZINF_NVME", str(disk))
    monkeypatch.setattr(run_target, "ROUNDS", 1)
    infer = () if train else ("--infer",)
    assert check("--run", "--update", *infer) == (
        0,
        f"base.json: written, {'2 schedules' if train else '1 schedule'}\n",
    )
    base = json.loads(Path("base.json").read_text())
    step, peak = (float(base["metrics"][f"measured {name}"]) for name in (STEP, PEAK))
    assert step > 0 and 0.1 < peak <= 1
    base["metrics"][f"measured {STEP}"] = "0.001"
    Path("base.json").write_text(json.dumps(base))
    status, shown = check("--run", *infer)
    assert status == 1
    assert "it was run, and no schedule says this" in said(shown, f"measured {STEP}")
    assert shown.splitlines()[-1].endswith(" --against base.json --run --update")
    figures = re.search(r"1 of (\d+) figures", shown)
    status, shown = check(*infer)
    assert status == 0 and "measured" not in shown
    assert figures and f", in {int(figures[1]) - 2} figures." in shown


def test_a_run_needs_a_model_and_a_base_is_looked_for_before_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_target, "measured", None)  # nothing is run
    assert run_main(monkeypatch, "check", "base.json", "--run", "--against", "base.json") == 2
    assert "--run trains a model, and base.json names schedules" in capsys.readouterr().err
    assert run_main(monkeypatch, "check", "model.py", "--run", "--against", "gone.json") == 2
    said = "gone.json: no such base; make one: zinf check model.py --against gone.json --run --update"
    assert said in capsys.readouterr().err


def test_a_model_that_no_longer_fits_is_worse_and_one_that_is_not_there_is_trouble(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "check", "model.py", "--memory", "512KiB", "--against", "base.json") == 1
    assert "memory=512KiB is too small" in capsys.readouterr().err
    assert run_main(monkeypatch, "check", "gone.py", "--against", "base.json") == 2
    assert "gone.py: there is no such file" in capsys.readouterr().err
