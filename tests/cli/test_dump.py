"""`zinf dump`: the forms of a target, what it prints and writes, and one clear line for what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from zcompiler.cli.app import app
from zcompiler.describe.build import built
from zcompiler.errors import DoesNotFit, ZinfError
from zcompiler.options import OptionError
from zcompiler.schedule.text import parse_schedule

ROOT = Path(__file__).parents[2]
FILE = """
import torch

def model():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))

def inputs():
    return (torch.randn(4, 64),)
"""
ON_NVME = ("--memory", "2MiB", "--compute", "eager", "--place", "params=nvme", "--place", "optimizer=nvme")
LLAMA = [
    f"--set={setting}"
    for setting in (
        "hidden_size=64",
        "num_hidden_layers=1",
        "intermediate_size=128",
        "num_attention_heads=4",
        "vocab_size=96",
    )
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small_model.py"
    path.write_text(FILE)
    return path


def dump(target: Path | str, *arguments: str) -> str:
    result = invoke(target, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def invoke(target: Path | str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["dump", str(target), *arguments])


def test_a_file_gives_its_plan_and_schedules_and_leaves_nothing_behind(
    file: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    text = dump(file, *ON_NVME)
    graph, update = text.split("\n# update\n")
    assert graph.startswith("# graph0\n# machine: ") and "# pipeline: partition-params{home=nvme}" in graph
    assert parse_schedule(graph).name == "graph0" and parse_schedule(update).name == "update"
    assert {p.name for p in file.parent.iterdir()} <= {file.name, "__pycache__"} and not list(own_home.iterdir())


def test_each_section_is_printed_when_it_is_asked_for(file: Path) -> None:
    text = dump(file, *ON_NVME, "--plan", "--ops", "--times", "--after", "gather-params")
    sections = [line for line in text.splitlines() if line.startswith("# ")]
    expected = ["graph0/plan.txt", "graph0/ops.txt", "graph0/02-gather-params.zsched", "step/times.txt"]
    assert sections == [f"# {name}" for name in (*expected, "step/summary.txt")]
    assert "\n0: params=nvme grads=host optimizer=nvme\n" in text
    assert "  takes      %primals_1  f32 [64,64]  0.weight\n" in text
    assert "aten.addmm.default(%primals_2, %primals_3, %t)  f32 [4,64]\n" in text
    assert "region update/0\n" in text and "lane              busy" in text


def test_passes_of_the_users_own_take_the_place_of_the_plans(file: Path) -> None:
    text = dump(
        file, *ON_NVME, "--passes", "partition-params{home=nvme},gather-params,release-params", "--after", "all"
    )
    titles = [line.removeprefix("# graph0/") for line in text.splitlines() if line.startswith("# graph0/")]
    names = ("bare", "partition-params", "gather-params", "release-params", "final")
    assert titles == [f"{i:02}-{name}.zsched" for i, name in enumerate(names)]


def test_a_folder_gets_the_files_that_option_dump_writes(file: Path, tmp_path: Path) -> None:
    said = dump(file, *ON_NVME, "--after", "all", "--plan", "--output", str(tmp_path / "out"))
    written = sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*.*"))
    assert written[0] == "graph0/00-bare.zsched"
    assert written[-3:] == ["graph0/plan.txt", "plan.json", "update/00-final.zsched"]
    assert said == f"{len(written)} files in {tmp_path / 'out'}\n"


def test_a_plan_from_a_folder_is_taken_and_gives_the_same(file: Path, tmp_path: Path) -> None:
    dump(file, *ON_NVME, "--after", "all", "--plan", "--output", str(tmp_path / "out"))
    given = "--memory", "2MiB", "--compute", "eager", "--given", str(tmp_path / "out" / "plan.json")
    dump(file, *given, "--after", "all", "--plan", "--output", str(tmp_path / "again"))
    first, again = (
        {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*.*")}
        for folder in (tmp_path / "out", tmp_path / "again")
    )
    assert len(first) > 10 and again == first
    error = invoke(file, *given, "--prefetch", "0B").exception
    assert isinstance(error, OptionError) and 'leave out "prefetch"' in str(error)


def test_json_has_everything_in_one_document(file: Path) -> None:
    found = json.loads(dump(file, *ON_NVME, "--json"))
    (graph,) = found["graphs"]
    assert graph["plan"]["placement"]["0"] == {"params": "nvme", "grads": "host", "optimizer": "nvme"}
    assert graph["schedules"][0]["after"] == "bare" and graph["peak"]["host"]["bytes"] < found["memory"] == 2 << 20
    assert parse_schedule(graph["schedules"][-1]["text"]).name == "graph0"
    assert found["update"]["late"] is True
    lanes = found["times"]["step"]["lanes"]
    assert lanes["nvme_read"]["bytes"] >= lanes["nvme_write"]["bytes"] > 0


def test_an_evaluation_has_no_backward_and_no_update(file: Path) -> None:
    text = dump(file, *ON_NVME, "--infer")
    assert "region fwd/" in text and "region bwd/" not in text and "# update" not in text


def test_the_optimizer_step_can_be_left_out(file: Path) -> None:
    with_update, without = dump(file, *ON_NVME), dump(file, *ON_NVME, "--no-update")
    assert "region update/" in with_update and with_update.startswith(without)


def test_a_module_and_function_is_a_target(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(FILE + "\ndef both():\n    return model(), inputs()\n")
    monkeypatch.syspath_prepend(str(file.parent))
    expected = dump(file, *ON_NVME)
    assert dump("small_model:both", *ON_NVME) == dump("small_model:model", *ON_NVME) == expected


def test_a_files_own_loss_and_optimizer_are_used(file: Path) -> None:
    file.write_text(FILE + "\ndef loss(out): return out.square().mean()\ndef optimizer(p): return torch.optim.SGD(p)\n")
    update = dump(file, *ON_NVME).split("\n# update\n")[1]
    assert ":state" not in update


def test_configurations_of_transformers_are_targets(tmp_path: Path) -> None:
    small = [*LLAMA, "--tokens=8", "--memory=2MiB", "--compute=eager"]
    by_type = dump("llama", *small)
    assert "value model.layers.0 param f32 " in by_type and "[1,8]" in by_type and "labels input i64" in by_type
    assert dump("LlamaForCausalLM", *small) == dump("LlamaConfig", *small) == by_type
    settings = {s.removeprefix("--set=").partition("=")[0]: int(s.partition("=")[2].partition("=")[2]) for s in LLAMA}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **settings}))
    assert dump(tmp_path, *small[len(LLAMA) :]) == dump(tmp_path / "config.json", *small[len(LLAMA) :]) == by_type
    assert "param bf16 " in dump("llama", *small, "--dtype=bfloat16")


@pytest.mark.parametrize(
    ("target", "arguments", "message"),
    [
        ("gone.py", (), "gone.py: there is no such file"),
        ("gone.json", (), "gone.json: there is no such file"),
        ("lama", (), 'lama (did you mean "llama"?) is no Python file, no MODULE:FUNCTION, no configuration file'),
        ("gone_module:model", (), "gone_module:model: there is no module gone_module"),
        ("json:gone", (), "json:gone: module json has no function gone"),
        ("json:dumps", (), "missing 1 required positional argument"),
        ("llama", ("--set", "hiden_size=8"), 'LlamaConfig has no such setting (did you mean "hidden_size"?)'),
        ("llama", ("--set", "hidden_size"), "--set hidden_size: write NAME=VALUE"),
        ("llama", ("--place", "nvme"), "--place nvme: write it as in --place params=nvme"),
        ("llama", ("--place", "param=nvme"), "a key of option \"place\" cannot be 'param' (did you mean \"params\"?)"),
        ("llama", ("--machine", "laptob"), '(did you mean "laptop"?)'),
    ],
)  # fmt: skip
def test_what_is_not_there_is_said_in_one_line(target: str, arguments: tuple[str, ...], message: str) -> None:
    error = invoke(target, *arguments).exception
    assert isinstance(error, TypeError if target == "json:dumps" else ZinfError)
    assert message in str(error) and "\n" not in str(error)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "has no function model(), which returns the model"),
        ("def model(): return 1", "has no function inputs(), which returns a batch"),
        ("def model(): return 1\ndef inputs(): return ()", "returns int, not a model (nn.Module)"),
        (FILE + "def loss(out): return out.detach().sum()", "the loss does not hang on any parameter"),
        (
            FILE.replace("return torch.nn.S", "torch.ones(1).item(); return torch.nn.S"),
            "looks at the values of tensors",
        ),
    ],
    ids=["no model", "no inputs", "no module", "no gradient", "values"],
)
def test_a_file_that_is_not_as_it_should_be_is_refused(source: str, message: str, file: Path) -> None:
    file.write_text(source)
    error = invoke(file, *ON_NVME).exception
    assert isinstance(error, ZinfError) and message in str(error) and "\n" not in str(error)


def test_a_limit_that_is_too_small_is_refused_with_one_that_works(file: Path) -> None:
    error = invoke(file, "--memory", "48KiB", "--compute", "eager").exception
    assert isinstance(error, DoesNotFit) and "Set memory to at least 1MiB" in str(error)
    dump(file, "--memory", "1MiB", "--compute", "eager")


def test_a_pass_that_did_not_run_is_named_with_those_that_did(file: Path) -> None:
    error = invoke(file, *ON_NVME, "--after", "gather-param").exception
    assert isinstance(error, ZinfError) and '(did you mean "gather-params"?); there are bare, ' in str(error)


def test_the_memory_of_a_named_machine_is_its_limit(file: Path) -> None:
    assert "tier host 256GiB compute" in dump(file, "--machine", "h200-server", "--compute", "eager")
    (file.parent / "bare.toml").write_text("zinf-machine = 1\n")
    error = invoke(file, "--machine", str(file.parent / "bare.toml")).exception
    assert isinstance(error, ZinfError) and not isinstance(error, OptionError)


def test_no_bytes_of_a_model_are_made() -> None:
    import torch

    with torch.device("meta"):
        model = torch.nn.Linear(1 << 20, 1 << 20)  # 4 TiB
    assert built(lambda: torch.nn.Linear(1 << 20, 1 << 20), "model").weight.nbytes == model.weight.nbytes == 1 << 42


def test_every_process_prints_the_same_bytes(file: Path) -> None:
    """And the file beside the target is found, as for a script."""
    file.write_text(FILE.replace("import torch", "import torch, beside"))
    (file.parent / "beside.py").write_text("")
    command = [sys.executable, "-m", "zcompiler.cli.app", "dump", str(file), *ON_NVME, "--ops", "--json"]
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environ = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    there = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=300).stdout
    here = CliRunner().invoke(app, command[3:])
    assert here.stdout == there and len(there) > 5000
