"""Ways in which models say the cross-entropy of a projection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import cross_entropy

HIDDEN = 16
CLASSES = 1000  # rows of 64 bytes, of which 32 begin where a read from disk may: eight tiles of 128 and less
Loss = Callable[[Any, torch.Tensor, torch.Tensor], Any]


class Projected(torch.nn.Module):
    """Something that trains, a projection to classes, and a loss by a function of the module, input and labels."""

    def __init__(self, loss: Loss, classes: int = CLASSES, bias: bool = True, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.body = torch.nn.Linear(HIDDEN, HIDDEN)
        self.head = torch.nn.Linear(HIDDEN, classes, bias=bias)
        with torch.no_grad():
            self.head.weight.mul_(4 * scale)
        self.loss = loss

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        return self.loss(self, torch.tanh(self.body(x)), labels)


def batch(tokens: int = 24, rows: int = 2, classes: int = CLASSES, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (rows, tokens), generator=generator)
    return {"x": torch.randn(rows, tokens, HIDDEN, generator=generator), "labels": labels}


def plain(m: Any, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return cross_entropy(m.head(x).view(-1, m.head.out_features), labels.view(-1))


def summed(m: Any, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return cross_entropy(m.head(x).flatten(0, 1), labels.flatten(), reduction="sum") / labels.numel()


def each(m: Any, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    losses = cross_entropy(m.head(x).reshape(-1, m.head.out_features), labels.reshape(-1), reduction="none")
    return (losses * torch.arange(labels.numel())).mean()


def shifted(m: Any, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    logits = m.head(x)
    kept = logits[..., :-1, :].contiguous()
    return torch.nn.CrossEntropyLoss()(kept.view(-1, logits.shape[-1]), labels[:, 1:].reshape(-1))


def ignoring(m: Any, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    labels = torch.where(labels % 3 == 0, -1, labels)
    logits = m.head(x).float().view(-1, m.head.out_features)
    return cross_entropy(logits, labels.view(-1), ignore_index=-1)


def transposed(m: Any, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return cross_entropy((x.flatten(0, 1) @ m.head.weight.T).double(), labels.flatten())


FORMS: dict[str, Loss] = {
    "mean": plain,
    "sum": summed,
    "one number a token": each,
    "labels that are the next tokens": shifted,
    "labels to ignore": ignoring,
    "a matmul, and logits in double precision": transposed,
}


def smoothed(m: Any, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return cross_entropy(m.head(x).flatten(0, 1), labels.flatten(), label_smoothing=0.1)


def weighted(m: Any, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    weight = torch.arange(m.head.out_features) + 1.0
    return cross_entropy(m.head(x).flatten(0, 1), labels.flatten(), weight=weight)


def penalized(m: Any, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    logits = m.head(x).flatten(0, 1)
    return cross_entropy(logits, labels.flatten()) + logits.logsumexp(1).square().mean()


def by_class_axis(m: Any, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return cross_entropy(m.head(x).transpose(1, 2), labels)


REFUSED: dict[str, Loss] = {
    "label_smoothing": smoothed,
    "weight": weighted,
    "uses the logits in another form": penalized,
    "go through transpose": by_class_axis,
}
