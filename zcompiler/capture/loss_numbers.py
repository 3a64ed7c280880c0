"""What the tiles of a projection and its cross-entropy compute, as functions of tensors that are traced.

A softmax over classes that come in tiles: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax".
The steps, and so the roundings, are those of torch's log_softmax and nll_loss, but for the order of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import torch
import torch.nn.functional as F

Tensors = tuple[torch.Tensor, ...]


def _logits(x: torch.Tensor, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    turned = rows.to(x.dtype).t()
    return x @ turned if bias is None else torch.addmm(bias, x, turned)


def tile_forward(
    x: torch.Tensor,
    rows: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    start: torch.Tensor,
    compute: torch.dtype,
    keep: bool,
) -> Tensors:
    """For each token, [tokens, 1]: the greatest logit, the sum of exp(logit - greatest), the label's logit or 0; and
    the logits if they are to `keep`."""
    logits = _logits(x, rows, bias)
    values = logits.to(compute)
    at = (labels - start).unsqueeze(1)
    inside = (at >= 0) & (at < rows.shape[0])
    own = torch.where(inside, values.gather(1, at.clamp(0, rows.shape[0] - 1)), 0.0)
    top = values.amax(1, keepdim=True)
    # Classes that are switched off with -inf may fill a tile: they add 0, and 0 is finite.
    total = (values - torch.where(top == -inf, 0.0, top)).exp().sum(1, keepdim=True)
    return (top, total, own, logits) if keep else (top, total, own)


def finish_forward(
    top: torch.Tensor,
    total: torch.Tensor,
    own: torch.Tensor,
    labels: torch.Tensor,
    classes: int,
    ignore_index: int,
    reduction: str,
    result: torch.dtype,
) -> Tensors:
    """The loss of all tokens, and what backward wants of each; `top` and `total` have a column for each tile."""
    greatest = top.amax(1, keepdim=True)
    log = (total * (top - greatest).exp()).sum(1, keepdim=True).log()
    # A row of equal log-probabilities without bytes of its own: torch's own loss checks and ignores labels.
    each = F.nll_loss(((own - greatest) - log).expand(-1, classes), labels, ignore_index=ignore_index, reduction="none")
    if reduction != "none":
        each = each.sum()
    if reduction == "mean":
        each = each / (labels != ignore_index).sum()
    return each.to(result), torch.cat([greatest, log], 1)


def token_gradients(
    grad: torch.Tensor, labels: torch.Tensor, ignore_index: int, reduction: str, compute: torch.dtype
) -> Tensors:
    """The gradient of each token's loss, [tokens, 1]."""
    kept = labels != ignore_index
    grad = grad.to(compute)
    if reduction == "mean":
        grad = grad / kept.sum()
    return (torch.where(kept, grad, 0.0).unsqueeze(1),)


def tile_backward(
    x: torch.Tensor,
    rows: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    start: torch.Tensor,
    stats: torch.Tensor,
    scale: torch.Tensor,
    wanted: Sequence[int],
) -> Tensors:
    """The tile's part of the gradient of x, the gradient of its rows, and that of its bias, as `wanted`."""
    weight = rows.to(x.dtype)
    greatest, log = stats.split(1, 1)
    grad = ((_logits(x, rows, bias).to(stats.dtype) - greatest) - log).exp() * scale
    classes = torch.arange(rows.shape[0], device=labels.device)
    grad = torch.where((labels - start).unsqueeze(1) == classes, grad - scale, grad).to(x.dtype)
    made = (
        lambda: grad @ weight,
        lambda: (grad.t() @ x).to(rows.dtype),
        lambda: grad.sum(0),
    )
    return tuple(made[number]() for number in wanted)
