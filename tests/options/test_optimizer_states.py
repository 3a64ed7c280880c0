from __future__ import annotations

import pytest
import torch

from zcompiler.options import OPTIMIZER_STATES


def stepped(name: str, start: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, dict[str, object]]:
    param = torch.nn.Parameter(start.clone())
    optimizer = getattr(torch.optim, name)([param])
    for scale in (1.0, -0.5):
        param.grad = grad * scale
        optimizer.step()
    return param.detach(), optimizer.state[param]


@pytest.mark.parametrize("name", OPTIMIZER_STATES)
def test_states_with_default_settings_and_elementwise(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    start, grad = torch.randn(6, 5, generator=generator), torch.randn(6, 5, generator=generator)
    whole, state = stepped(name, start, grad)
    kept = tuple(k for k, v in state.items() if isinstance(v, torch.Tensor) and v.shape == start.shape)
    assert kept == OPTIMIZER_STATES[name]
    assert all(state[k].dtype == start.dtype for k in kept)  # type: ignore[attr-defined]
    upper, _ = stepped(name, start[:2], grad[:2])
    lower, _ = stepped(name, start[2:], grad[2:])
    torch.testing.assert_close(torch.cat([upper, lower]), whole)
