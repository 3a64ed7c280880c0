"""The Trainer of transformers around a model that was compiled in place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import Trainer, TrainingArguments

import zcompiler
from tests.around.in_place import stock, zinf
from tests.right.models import batches, built, llama
from tests.right.twins import ALL_ON_NVME, assert_equal, assert_on_nvme, with_zinf

# Of transformers, whose older versions know this name only.
pytestmark = pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning")

STEPS, SAVED = 4, 2
ROWS = [{name: value[i] for name, value in batch.items()} for batch in batches(llama, 8) for i in range(2)]


def trainer(compiled: Any, folder: Path, **arguments: Any) -> Trainer:
    """Micro-batches, layers computed again, an evaluation and a checkpoint half-way."""
    chosen: dict[str, Any] = {
        "max_steps": STEPS, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
        "gradient_checkpointing": True, "learning_rate": 1e-2, "warmup_steps": 1,
        "eval_strategy": "steps", "eval_steps": SAVED, "save_steps": SAVED, "logging_steps": 1,
        "seed": 3, "use_cpu": True, "report_to": [], "disable_tqdm": True,
        **arguments,
    }  # fmt: skip
    return Trainer(
        model=compiled,
        args=TrainingArguments(output_dir=str(folder), **chosen),
        train_dataset=ROWS,
        eval_dataset=ROWS[:4],
    )


def numbers(trained: Trainer) -> list[dict[str, Any]]:
    """All that the Trainer logged, but for the times."""
    timed = ("runtime", "per_second", "flos")
    return [{k: v for k, v in entry.items() if not k.endswith(timed)} for entry in trained.state.log_history]


def saved(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(folder / f"checkpoint-{step}" / "model.safetensors")


def saved_states(folder: Path, step: int) -> dict[str, Any]:
    states = torch.load(folder / f"checkpoint-{step}" / "optimizer.pt")["state"]
    return {f"{slot} {key}": value for slot, state in states.items() for key, value in state.items()}


def model() -> Any:
    """With dropout, whose masks must come out the same in a layer that is computed again."""
    made: Any = built(llama, 1)
    made.model.layers[0].self_attn.attention_dropout = 0.1
    return made


@dataclass(frozen=True)
class Run:
    """What a run logged, and where it saved its checkpoints."""

    logged: list[dict[str, Any]]
    folder: Path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("plain")
    trained = trainer(stock(model()), folder)
    trained.train()
    return Run(numbers(trained), folder)


def test_the_trainer_logs_and_saves_what_it_does_in_memory_and_resumes(plain: Run, disk: Path, tmp_path: Path) -> None:
    assert sum("eval_loss" in entry for entry in plain.logged) == STEPS // SAVED
    ours = zinf(model(), disk, place=ALL_ON_NVME)
    trained = trainer(ours, tmp_path / "zinf")
    trained.train()
    assert numbers(trained) == plain.logged
    for step in (SAVED, STEPS):
        assert_equal(saved(tmp_path / "zinf", step), saved(plain.folder, step), f"weight saved at {step},")
        states = (saved_states(folder, step) for folder in (tmp_path / "zinf", plain.folder))
        assert_equal(*states, f"state saved at {step},")
    assert_on_nvme(ours, "param", "grad", "state")
    assert zcompiler.stats(ours).steps == STEPS
    assert zcompiler.stats(ours).fallbacks == ()

    fresh = zinf(llama(1), disk, place=ALL_ON_NVME)
    fresh.model.layers[0].self_attn.attention_dropout = 0.1
    zcompiler.reset_stats(ours)
    resumed = trainer(fresh, tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "zinf" / f"checkpoint-{SAVED}"))
    assert numbers(resumed)[:-1] == plain.logged[:-1]  # the last is the mean loss of the steps after the checkpoint
    assert_equal(saved(tmp_path / "resumed", STEPS), saved(plain.folder, STEPS), "weight of the resumed run")
    assert_on_nvme(fresh, "param", "grad", "state")
    assert zcompiler.stats(fresh).steps == STEPS - SAVED


def test_the_trainer_refuses_the_name_of_the_backend(tmp_path: Path) -> None:
    """accelerate has a closed list of backends. docs/trainer.md says so; when this fails, it need not any more."""
    with pytest.raises(ValueError, match="ZINF"):
        trainer(model(), tmp_path, torch_compile_backend="zinf")


@pytest.mark.full
def test_the_trainer_takes_the_compiled_form_if_told_its_columns(plain: Run, disk: Path, tmp_path: Path) -> None:
    """And its checkpoints have other names, as with every backend; docs/trainer.md advises against it."""
    ours = with_zinf(model(), disk)
    with pytest.raises(ValueError, match="batch received was empty"):
        trainer(ours, tmp_path).train()
    trained = trainer(ours, tmp_path, remove_unused_columns=False, label_names=["labels"])
    trained.train()
    assert numbers(trained) == plain.logged
    expected = {f"_orig_mod.{name}": weight for name, weight in saved(plain.folder, STEPS).items()}
    assert_equal(saved(tmp_path, STEPS), expected, "saved weight")
    assert_on_nvme(ours, "param", "state")
