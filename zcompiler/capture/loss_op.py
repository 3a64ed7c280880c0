"""A projection and the cross-entropy of what it gives, as one operator: a graph in which the logits have no node.

`zinf::projected_loss` stands in Dynamo's graph for both, AOTAutograd differentiates it, and `loss_tiles.py` takes it
and `zinf::projected_loss_backward` apart before regions are cut: neither ever runs as it is.
"""

from __future__ import annotations

from typing import Any

import torch

torch.library.define(
    "zinf::projected_loss",
    "(Tensor x, Tensor weight, Tensor? bias, Tensor labels, int position, int ignore_index, str reduction, "
    "ScalarType compute, ScalarType result, bool keep) -> (Tensor loss, Tensor stats, Tensor logits)",
)
torch.library.define(
    "zinf::projected_loss_backward",
    "(Tensor grad, Tensor x, Tensor weight, Tensor? bias, Tensor labels, Tensor stats, int position, "
    "int ignore_index, str reduction, ScalarType compute) -> (Tensor x, Tensor weight, Tensor bias)",
)
FORWARD = torch.ops.zinf.projected_loss.default
BACKWARD = torch.ops.zinf.projected_loss_backward.default


@torch.library.register_fake("zinf::projected_loss")
def _(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    position: int,
    ignore_index: int,
    reduction: str,
    compute: torch.dtype,
    result: torch.dtype,
    keep: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`x` [tokens, hidden]; `weight` [classes, hidden] in any type; `bias` [classes] in the type of x; `labels`
    [tokens]. `stats` [tokens, 2] has the greatest logit and the log of the sum of exp(logit - greatest), in `compute`;
    `logits` [tokens, classes] has nothing in it unless they are to `keep`."""
    tokens = x.shape[0]
    loss = x.new_empty((tokens,) if reduction == "none" else (), dtype=result)
    logits = x.new_empty((tokens, weight.shape[0]) if keep else (0,))
    return loss, x.new_empty((tokens, 2), dtype=compute), logits


@torch.library.register_fake("zinf::projected_loss_backward")
def _(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    stats: torch.Tensor,
    position: int,
    ignore_index: int,
    reduction: str,
    compute: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), torch.empty_like(weight), x.new_empty((weight.shape[0],))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    x, weight, bias, labels, *ctx.how, _, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, bias, labels, output[1])


def _backward(ctx: Any, grad: torch.Tensor | None, *others: object) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 10
    made = BACKWARD(grad, *ctx.saved_tensors, *ctx.how)
    wanted = [g if needed else None for g, needed in zip(made, ctx.needs_input_grad[:3], strict=True)]
    return (*wanted, *[None] * 7)


torch.library.register_autograd("zinf::projected_loss", _backward, setup_context=_save)
