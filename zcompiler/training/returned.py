"""What a graph returns beside what it computes: logits beside their loss, and views of parameters.

Logits are made without autograd, and given a way back here: autograd makes a gradient for every output of a graph,
zeros for those that a user's loss does not use, and for logits these are as large as the logits. Here none is made: a
gradient that somebody does ask for goes through the projection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from zcompiler.capture.loss import TiledLosses
from zcompiler.training.registry import settle


class _Projected(torch.autograd.Function):
    """Logits [..., classes] as they are; backward is that of x @ weight.T + bias, where x is [tokens, hidden]."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight)
        return logits.data  # no view, or the caller could not change them in place

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[torch.Tensor | None, ...]:
        (grad,) = grads
        if grad is None:
            return None, None, None, None
        x, weight = ctx.saved_tensors
        grad = grad.reshape(-1, grad.shape[-1])
        _, for_x, for_weight, for_bias = ctx.needs_input_grad
        return (
            None,
            grad @ weight.to(grad.dtype) if for_x else None,
            (grad.t() @ x).to(weight.dtype) if for_weight else None,
            grad.sum(0) if for_bias else None,
        )


def with_returned_logits(compiled: Callable[..., Any], losses: TiledLosses) -> Callable[..., Any]:
    """The compiled graph with a way for gradients through the logits that it returns, and without the results that
    the user's graph had not."""
    if not losses.returned:
        return compiled

    def run(*args: Any) -> tuple[Any, ...]:
        results = list(compiled(*args))
        for logits, x, weight, bias in ((r.logits, r.x, r.weight, r.bias) for r in losses.returned):
            results[logits] = _Projected.apply(
                results[logits], results[x], args[weight], None if bias is None else args[bias]
            )
        return tuple(results[: losses.results])

    return run


def with_updated_views(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled graph, which returns views of parameters: they look into the store's files, where the parameters
    must have arrived when the caller gets them."""

    def run(*args: Any) -> Any:
        results = compiled(*args)
        settle()
        return results

    return run
