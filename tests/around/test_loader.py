"""A DataLoader whose workers are forked while the weights rest on nvme."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from tests.training.looks import held_files
from tests.training.pair import Side, pair


class Rows(Dataset):
    """Batches made in a worker. It also holds the model, as datasets that prepare their inputs with it do."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        assert get_worker_info() is not None, "made in the process that trains"
        assert all(p.isfinite().all() for p in self.module.parameters())
        generator = torch.Generator().manual_seed(i)
        return {"x": torch.randn(7, generator=generator), "labels": torch.randn(5, generator=generator)}


@pytest.mark.parametrize("persistent", [False, True], ids=["new workers each epoch", "persistent workers"])
def test_workers_forked_after_the_first_step_feed_a_training_that_stays_right(persistent: bool, disk: Path) -> None:
    own = pair(disk)
    loader = DataLoader(
        Rows(own.ours.module), batch_size=6, num_workers=2, persistent_workers=persistent,
        multiprocessing_context="fork", timeout=120,
    )  # fmt: skip
    steps = 0
    for _ in range(2):
        for batch in loader:
            own.same(partial(Side.step, batch=batch))
            steps += 1
    assert steps == 8
    del loader  # persistent workers end with it
    assert held_files(disk)
    own.goes_on()
