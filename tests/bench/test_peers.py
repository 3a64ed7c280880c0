"""bench.peers: turns, limits and errors with systems that only count, and its own half on a small model."""

from __future__ import annotations

import ast
import gc
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from bench.cgroup import Unavailable
from bench.peers import child, environment
from bench.peers.eager import eager
from bench.peers.rounds import IN_A_ROW, LOOKS, WARM, compared
from bench.peers.systems import MIB, SHARES, System, limit_of
from bench.peers.table import cells
from bench.peers.zinf import zinf
from bench.turns import ROOT, Child, Ended
from zcompiler.cli.demo_child import RATE
from zcompiler.torch_compat.running import trim_memory

# Notes each step in the file `log`; a step takes what its settings say and fails when it is the one they name.
COUNTS = """
import json
from bench.serve import serve

def prepare(settings):
    done = 0
    def step():
        nonlocal done
        done += 1
        with open(settings["log"], "a") as log:
            print(settings["name"], file=log)
        if done == settings.get("fails"):
            raise ValueError("no buffer is left")
        return {"loss": 1.0 / done, "seconds": settings["seconds"] * done, "read": 3 * 10**9, "written": 10**9,
                "peak": settings["peak"] + done}
    return {"load": lambda: {"parameters": 1}, "step": step}

serve(prepare)
"""
FIRST = System("eager", "counts", settings={"seconds": 1.0, "peak": 900 * MIB})
PEER = System("peer", "counts", settings={"seconds": 2.0, "peak": 400 * MIB})
OTHER = System("other", "counts", settings={"seconds": 3.0, "peak": 500 * MIB})


class Launched:
    """Starts processes that count, and remembers with which limits."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "counts.py").write_text(COUNTS)
        monkeypatch.setenv("PYTHONPATH", str(folder))
        self._log = folder / "log"
        self.limits: dict[str, int | None] = {}
        self.fails: dict[str, int] = {}

    def __call__(self, system: System, limit: int | None) -> Child:
        self.limits[system.name] = limit
        settings = {"seconds": 0.5, "peak": 100 * MIB, "fails": self.fails.get(system.name), **system.settings}
        return Child(system.name, "counts", {**settings, "name": system.name, "log": str(self._log)})

    def steps(self) -> list[str]:
        return self._log.read_text().splitlines()


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launched:
    return Launched(tmp_path, monkeypatch)


def test_all_take_turns_in_an_order_that_changes(launched: Launched) -> None:
    rows = compared(launched, FIRST, [OTHER], "nobody", 2)
    warm = ["eager"] * WARM + ["other"] * WARM
    turns = [name for turn in ("other", "eager", "eager", "other") for name in [turn] * IN_A_ROW]
    assert launched.steps() == warm + turns
    assert [row.name for row in rows] == ["eager", "other"]


def test_medians_are_of_turns_and_ratios_of_the_rounds_that_a_row_was_in(launched: Launched) -> None:
    first, other, peer = compared(launched, FIRST, [OTHER, PEER], "nobody", 3)
    # The n-th step takes n times as long: a turn's mean lies between its steps, and the median is the second turn's.
    assert [turn.seconds for turn in other.turns] == [3 * n for n in (4.5, 6.5, 8.5)]
    assert other.beside == [4.5, 6.5, 8.5] and peer.beside == [10.5, 12.5, 14.5]
    assert other.median("seconds") == 19.5 and other.ratio == 3.0
    assert peer.ratio == 13.0 / 12.5
    assert len(first.turns) == 6 and first.losses[:3] == [1, 1 / 2, 1 / 3]
    assert max(turn.peak for turn in other.turns) == 500 * MIB + WARM + 3 * IN_A_ROW


def test_limits_are_shares_of_the_peak_that_was_seen(launched: Launched) -> None:
    rows = compared(launched, FIRST, [PEER, OTHER], "peer", 1)
    seen = 400 * MIB + WARM + LOOKS
    named = ["zinf at peer's peak", "zinf at 1/2 of peer's peak", "zinf at 1/4 of peer's peak"]
    assert [row.name for row in rows][2:5] == named
    assert [row.limit for row in rows] == [None, None, *(limit_of(share, seen) for share in SHARES), None]
    assert [launched.limits[row.name] for row in rows] == [row.limit for row in rows]
    assert limit_of(Fraction(1, 4), 400 * MIB + 7) == 100 * MIB


def test_the_error_of_a_peer_is_its_row_and_the_others_go_on(launched: Launched) -> None:
    launched.fails = {"other": 2, "zinf at 1/2 of peer's peak": WARM + IN_A_ROW + 1}
    rows = {row.name: row for row in compared(launched, FIRST, [OTHER, PEER], "peer", 2)}
    errors = {name: row.error for name, row in rows.items() if row.error}
    assert errors == dict.fromkeys(launched.fails, "ValueError: no buffer is left")
    assert not rows["other"].turns and len(rows["zinf at 1/2 of peer's peak"].turns) == 1
    assert len(rows["zinf at 1/4 of peer's peak"].turns) == len(rows["peer"].turns) == 2
    assert cells(rows["other"], rows["eager"], rows["peer"])[-1] == "ValueError: no buffer is left"


def test_without_a_peak_there_is_no_share_of_it(launched: Launched) -> None:
    launched.fails = {"peer": WARM + 1}
    rows = compared(launched, FIRST, [PEER], "peer", 1)
    assert [row.error is None for row in rows] == [True, False, False, False, False]
    assert "peer failed" in (rows[-1].error or "")


def test_without_the_reference_there_is_nothing_to_compare_with(launched: Launched) -> None:
    launched.fails = {"eager": WARM + 1}
    with pytest.raises(Ended, match="the eager process ended"):
        compared(launched, FIRST, [OTHER], "nobody", 1)


def test_an_environment_that_is_not_there_or_incomplete_is_named(tmp_path: Path) -> None:
    (tmp_path / "half").mkdir()
    with pytest.raises(Unavailable, match=r"half is not there or not complete; run: make bench-peers"):
        environment.python("half", tmp_path)
    (tmp_path / "half" / "installed").touch()
    assert environment.python("half", tmp_path) == tmp_path / "half" / "bin" / "python"


def test_what_deepspeed_compiles_with_is_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "g++"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match=r"apt-get install g\+\+, or"):
        environment.need_deepspeeds_own()
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(0o755)
    with pytest.raises(Unavailable, match=r"apt-get install libaio-dev, or"):
        environment.need_deepspeeds_own()
    compiler.write_text("#!/bin/sh\nexit 0\n")
    environment.need_deepspeeds_own()


@pytest.mark.parametrize("module", ["child", "eager", "inductor", "fsdp2", "deepspeed", "zinf", "../serve"])
def test_what_runs_in_a_peers_environment_imports_nothing_of_zinf(module: str) -> None:
    tree = ast.parse((ROOT / "bench" / "peers" / f"{module}.py").read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    own = {name for name in imported if name.split(".")[0] in ("bench", "zcompiler", "runtime_ext")}
    assert own <= {"bench.peers.child", "bench.serve"}


def test_all_train_as_the_demo_does() -> None:
    assert child.RATE == RATE


def test_a_system_makes_the_same_steps_whatever_trains_and_tells_what_they_move(disk: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    small = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64}
    module = LlamaForCausalLM(LlamaConfig(**small, num_hidden_layers=2, num_attention_heads=2))
    files = disk / "files"
    module.config.save_pretrained(files)
    save_file({name: p.detach() for name, p in module.named_parameters()}, files / "weights.safetensors")
    save_file({"batches": torch.randint(0, 64, (2, 1, 16))}, files / "batches.safetensors")
    options = {"memory": "64MiB", "nvme": str(disk), "compute": "eager"}
    options["place"] = dict.fromkeys(("params", "grads", "optimizer"), "nvme")
    settings = {"folder": str(files), "precision": "fp32", "options": options}
    sides = [child.Training(system, settings) for system in (eager, zinf)]
    gc.collect()
    trim_memory()  # what other tests have left: given back later, it would make the peak less than nothing
    assert {side.load()["parameters"] for side in sides} == {sum(p.numel() for p in module.parameters())}
    plain, ours = ([side.step() for _ in range(3)] for side in sides)
    assert [step["loss"] for step in ours] == pytest.approx([step["loss"] for step in plain], rel=1e-6)
    assert plain[0]["loss"] == module(input_ids=(ids := sides[0]._batches[0]), labels=ids).loss.item()
    nbytes = 4 * sum(p.numel() for p in module.parameters())
    assert ours[-1]["written"] >= 3 * nbytes > 0 == plain[-1]["written"]
    assert all(step["seconds"] > 0 and step["peak"] > 0 for step in (*plain, *ours))


def test_what_the_make_file_installs_is_what_zinf_is_tested_with() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    lines = (ROOT / "bench" / "peers" / "torch.txt").read_text().splitlines()
    shared = {name: version for line in lines if "==" in line for name, version in [line.split("==")] if name in pins}
    assert shared == {name: pins[name] for name in shared} and "torch" in shared
