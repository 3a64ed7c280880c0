from __future__ import annotations

import copy
from functools import partial
from pathlib import Path

import torch

import zcompiler
from tests.right.models import batches, built, decoder
from tests.right.twins import assert_close, assert_on_nvme, train, with_zinf

STEPS = 4
OPTIMIZERS = (partial(torch.optim.AdamW, lr=1e-3),)


def test_losses_are_those_of_plain_pytorch_and_equal_layers_are_compiled_once(disk: Path) -> None:
    data = batches(decoder, STEPS)
    module = built(decoder, 3)
    plain = train(copy.deepcopy(module), OPTIMIZERS, data)
    model = with_zinf(module, disk, compute="inductor")
    assert_close(train(model, OPTIMIZERS, data), plain, 1e-5)
    assert_on_nvme(model, "param", "state")
    compiled = zcompiler.stats(model).regions_compiled

    # The same options, so the same session: more layers, and not one region that is not there yet.
    deep = with_zinf(built(decoder, 5), disk, compute="inductor")
    train(deep, OPTIMIZERS, data[:1])
    assert zcompiler.stats(deep).regions_compiled == compiled
