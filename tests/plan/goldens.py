"""Steps of three small models as text, and what the planner makes of them at three limits.

python -m tests.plan.goldens accept     # what the planner makes now is right
python -m tests.plan.goldens capture    # write the steps anew, from the models, with the torch that is installed
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.plan.steps import KIB, planned
from zcompiler.errors import DoesNotFit
from zcompiler.passes.pipeline import parse_pipeline, run_pipeline
from zcompiler.plan.plan import Plan
from zcompiler.plan.step import PhaseNames, Step
from zcompiler.schedule.memory import peak
from zcompiler.schedule.model import Schedule, Tier
from zcompiler.schedule.text import parse_schedule, print_schedule

FOLDER = Path(__file__).parent / "goldens"
MODELS = ("llama", "gpt2", "mlp")
ENOUGH = 1 << 40


def step(model: str, limit: int) -> Step:
    """The captured step as its text says, under a limit."""
    schedule = parse_schedule((FOLDER / f"{model}.zsched").read_text())
    made = {v.name: v.name.partition(":grad")[0] for v in schedule.values if v.kind == "grad"}
    tiers = (Tier("host", limit, True), Tier("nvme", None, False))
    bare = Schedule(schedule.name, tiers, schedule.values, schedule.regions)
    return Step(bare, PhaseNames(), PhaseNames(buckets=made))


def limits(model: str) -> dict[str, int]:
    """The least that can work, all that is ever used, and what lies between, in whole KiB."""
    (most, _) = peak(step(model, ENOUGH).schedule)["host"]
    try:
        planned(step(model, KIB), KIB)
        raise AssertionError("a step fits into one KiB")
    except DoesNotFit as refusal:
        least = refusal.least
    least, most = -(-least // KIB) * KIB, -(-most // KIB) * KIB
    return {"least": least, "middle": (least + most) // 2 // KIB * KIB, "all": most}


def finished(model: str, limit: int) -> tuple[Plan, Schedule]:
    given = step(model, limit)
    plan = planned(given, limit)
    return plan, run_pipeline(given.placed(plan.placement).schedule, parse_pipeline(plan.pipeline))


def text(plan: Plan, schedule: Schedule) -> str:
    return "".join(f"# {reason}\n" for reason in plan.reasons) + print_schedule(schedule)


def main(what: str) -> None:
    if what == "capture":
        for model, build in _builders().items():
            found = _captured(*build())
            (FOLDER / f"{model}.zsched").write_text(print_schedule(found))
    for model in MODELS:
        for name, limit in limits(model).items():
            (FOLDER / f"{model}-{name}.zsched").write_text(text(*finished(model, limit)))


def _captured(model: Any, inputs: Any) -> Schedule:
    import zcompiler

    options = {"memory": ENOUGH, "compute": "eager", "activations": "keep", "machine": "laptop"}
    return zcompiler.schedule(model, inputs, options=options).graphs[0].passes[0][1]


def _builders() -> dict[str, Callable[[], tuple[Any, Any]]]:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    ids = torch.zeros(2, 16, dtype=torch.long)
    tokens = {"input_ids": ids, "labels": ids}
    llama = LlamaConfig(
        hidden_size=256, num_hidden_layers=4, intermediate_size=512, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=512,
    )  # fmt: skip
    gpt2 = GPT2Config(n_embd=192, n_layer=3, n_head=4, vocab_size=512, n_positions=32)

    def mlp() -> torch.nn.Module:
        layers = [m for width in (512, 256, 128) for m in (torch.nn.Linear(2 * width, width), torch.nn.Tanh())]
        return torch.nn.Sequential(*layers)

    return {
        "llama": lambda: (LlamaForCausalLM(llama), tokens),
        "gpt2": lambda: (GPT2LMHeadModel(gpt2), tokens),
        "mlp": lambda: (mlp(), torch.zeros(8, 1024)),
    }


if __name__ == "__main__":
    main(sys.argv[1])
