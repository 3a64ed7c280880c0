"""A process that goes on from a checkpoint on nvme, for two steps, and saves again.

python -m tests.around.resumed FOLDER CHECKPOINT RESULT
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from tests.right.models import mlp
from tests.right.twins import assert_on_nvme, with_zinf
from tests.training.pair import DATA, Side, adamw


def main(folder: Path, checkpoint: Path, result: Path) -> None:
    module = mlp().train()
    side = Side(module, with_zinf(module, folder), adamw(module.parameters()))
    file = torch.load(checkpoint)
    module.load_state_dict(file["model"])
    side.optimizer.load_state_dict(file["optimizer"])
    for batch in DATA[2:4]:
        side.step(batch)
    assert_on_nvme(side.model, "param", "state")
    torch.save({"model": module.state_dict(), "optimizer": side.optimizer.state_dict()}, result)


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:]))
