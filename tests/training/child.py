"""A process that trains from nvme for ever, until it is told how to end: see `end` below.

    python -m tests.training.child FOLDER END

It prints a line "step N" when the optimizer step N is done and, inside the third step, acts on END: "exit" returns,
"raise" raises, "hang" says "forward" and waits in the middle of the step for a signal.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import torch

from tests.right.models import batches, built, mlp
from tests.right.twins import ALL_ON_NVME, with_zinf


def main(folder: Path, end: str) -> None:
    model = with_zinf(built(mlp), folder, place=ALL_ON_NVME)
    optimizer = torch.optim.AdamW(model.parameters())
    for step, batch in enumerate(batches(mlp, 5)):
        loss = model(**batch)
        if step == 2:
            act(end)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}", flush=True)
    lasting = [t.name for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
    print(f"threads {lasting}", flush=True)


def act(end: str) -> None:
    if end == "raise":
        raise KeyError("as asked")
    if end == "hang":
        print("forward", flush=True)
        signal.pause()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
