"""How long does planning take, and how does that grow with the layers?

    python -m bench.planning [--layers 25 50 100] [--kib 900]

Narrow Llamas are described at a limit at which model states have to move and activations may. Capturing, of which
torch's tracing is no part, is told beside; planning is all that decides: each try of a placement with its passes, and
each simulated step. What must hold:

    planning of the deepest                         <= 5 s
    planning of the deepest / of the one before it  <= 1.25 * the ratio of their layers * log(layers)
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence

import torch
from rich.console import Console
from rich.table import Table

import zcompiler
from bench.record import entry, parser, record, verdict
from zcompiler.describe.build import built

MOST = 5.0
NOISE = 1.25
WIDTH, HEADS, TOKENS, WORDS = 64, 4, 256, 1024
_STAGE = re.compile(r"\S+: (?P<what>joint passes|capture|plan) took (?P<seconds>[\d.]+) s")


class Stages(logging.Handler):
    """Sums up the seconds of the stages that are logged."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.seconds = {"capture": 0.0, "plan": 0.0}

    def emit(self, log: logging.LogRecord) -> None:
        if found := _STAGE.fullmatch(log.getMessage()):
            what = "plan" if found["what"] == "plan" else "capture"
            self.seconds[what] += float(found["seconds"])


def stages(layers: int, bytes_a_layer: int) -> dict[str, float]:
    """Seconds of capturing and planning a step of so many layers, with as many bytes of memory for each."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=WIDTH, num_hidden_layers=layers, intermediate_size=3 * WIDTH, num_attention_heads=HEADS,
        num_key_value_heads=HEADS, vocab_size=WORDS, tie_word_embeddings=True,
    )  # fmt: skip
    model = built(lambda: LlamaForCausalLM(config), "the model")
    ids = torch.zeros((1, TOKENS), dtype=torch.long)
    logger, handler = logging.getLogger("zinf.stages"), Stages()
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        options = {"memory": layers * bytes_a_layer, "tile": {}}
        zcompiler.schedule(model, {"input_ids": ids, "labels": ids}, options=options, update=False)
    finally:
        logger.removeHandler(handler)
    return handler.seconds


def growth(few: int, many: int) -> float:
    """How much longer planning may take for so many more layers."""
    return NOISE * many * math.log(many) / (few * math.log(few))


def main() -> bool:
    arguments = parser(__doc__)
    arguments.add_argument("--layers", nargs="+", type=int, default=(25, 50, 100))
    arguments.add_argument("--kib", type=int, default=900, help="memory for each layer, in KiB")
    given = arguments.parse_args()
    taken: list[dict[str, float]] = []
    table = Table(title="Planning a step")
    for heading in ("layers", "capture", "planning"):
        table.add_column(heading, justify="right")
    for layers in given.layers:
        taken.append(stages(layers, given.kib << 10))
        record("planning", layers=layers, **taken[-1])
        table.add_row(str(layers), f"{taken[-1]['capture']:.1f} s", f"{taken[-1]['plan']:.1f} s")
    Console().print(table)
    return judged(given.layers, [one["plan"] for one in taken])


def judged(layers: Sequence[int], seconds: Sequence[float]) -> bool:
    """Whether what must hold does."""
    short = verdict("planning", f"seconds to plan {layers[-1]} layers", seconds[-1], at_most=MOST)
    if len(layers) == 1:
        return short
    question = f"planning {layers[-1]} layers / {layers[-2]} layers"
    ratio = seconds[-1] / seconds[-2]
    return verdict("planning", question, ratio, at_most=growth(layers[-2], layers[-1])) and short


if __name__ == "__main__":
    entry(main)
