"""What offloading and recomputing activations takes off the peak, planned and measured, and what a limit admits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import zcompiler
from tests.activations.models import WIDTH, Deep, Transformer, inputs
from tests.right.twins import ON_HOST, moved, with_zinf

DEPTH = 16
LONG, SHORT = inputs((4, 512, WIDTH), (4, 64, WIDTH))
ACTIVATION = LONG.nbytes


def held(
    folder: Path, module: torch.nn.Module, activations: Any, x: torch.Tensor = LONG, **options: Any
) -> tuple[int, int, Any]:
    """(measured peak, planned peak, the model) of two steps' forward and backward."""
    model = with_zinf(module, folder, activations=activations, place=ON_HOST, **options)
    for _ in range(2):
        model(x).backward()
    stats = zcompiler.stats(model)
    return stats.peak["host"], stats.planned_peak["host"], model


def test_a_deep_model_holds_a_few_layers_activations_at_a_time(disk: Path) -> None:
    """Each of its layers saves its input and what gelu was applied to."""
    kept, planned, _ = held(disk, Deep(DEPTH), "keep")
    saved = 2 * DEPTH * ACTIVATION
    assert kept >= saved
    ours, planned_ours, model = held(disk, Deep(DEPTH), "nvme")
    assert kept - ours >= 0.6 * saved
    assert planned - planned_ours >= 0.6 * saved
    assert ours <= planned_ours
    read, written = moved(model, "act")
    # All but what the last layer saves and the model's input, in each of two steps.
    assert read == written == 2 * (2 * DEPTH - 3) * ACTIVATION


def test_computing_again_and_moving_the_rest_hold_less_and_less(disk: Path) -> None:
    peaks = []
    for activations in ("keep", "recompute", "recompute+nvme"):
        measured, planned, model = held(disk, Transformer(4), activations, SHORT)
        assert measured <= planned
        peaks.append(measured)
    assert peaks[1] < 0.8 * peaks[0] and peaks[2] < 0.8 * peaks[1]
    assert moved(model, "act")[0] > 0


def test_a_limit_that_is_too_small_for_kept_activations_admits_offloaded_ones(disk: Path) -> None:
    options = {"memory": 16 * ACTIVATION, "prefetch": 0}
    with pytest.raises(Exception, match="let activations go to nvme or be computed again") as caught:
        held(disk, Deep(DEPTH), "keep", **options)
    assert "too small" in str(caught.value)
    ours, planned, _ = held(disk, Deep(DEPTH), "nvme", **options)
    assert ours <= planned <= 16 * ACTIVATION


def test_units_are_chosen_by_globs(disk: Path) -> None:
    _, _, model = held(disk, Deep(6), {"layers.[0-1]": "nvme", "layers.2": "keep", "*": "recompute"})
    schedule = zcompiler.schedule(model)["graph0"]
    offloaded = {region.name for region, op in schedule.ops() if op.kind == "write"}
    assert offloaded == {"fwd/layers.0", "fwd/layers.1", "fwd/layers.2"}  # where the last use is
    made = {n: region.name for region, op in schedule.ops() if region.phase == "fwd" for n in op.writes}
    assert {made[op.value] for _, op in schedule.ops() if op.kind == "write"} == {"fwd/layers.0", "fwd/layers.1"}
