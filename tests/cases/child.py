"""A process that trains from nvme while another one does in the same folder.

    python -m tests.cases.child FOLDER

It prints a digest of all losses and weights, then the kinds of state whose bytes moved.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import torch

from tests.right.models import batches, built, mlp
from tests.right.twins import ALL_ON_NVME, copied, moved, with_zinf

KINDS = ("param", "grad", "state")


def digest(model: Any) -> str:
    """Of the losses and weights of some steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    numbers = []
    torch.manual_seed(0)
    for batch in batches(mlp, 3) * 5:
        loss = model(**batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        numbers.append(loss.detach())
    numbers += copied(dict(model.named_parameters())).values()
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in numbers)).hexdigest()


if __name__ == "__main__":
    trained = with_zinf(built(mlp), Path(sys.argv[1]), place=ALL_ON_NVME)
    print(digest(trained), *(kind for kind in KINDS if all(moved(trained, kind))))
