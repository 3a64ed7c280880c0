"""Programs about layers: those of torch.nn that stand apart, layers computed again, and functions written by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.right.parameters import IDS
from tests.right.programs import PLAIN, Two
from tests.right.runs import Program


class Embeddings(nn.Module):
    """A padding index, and bags."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(17, 8, padding_idx=0)
        self.bag = nn.EmbeddingBag(19, 8, mode="mean", padding_idx=1)
        self.sums = nn.EmbeddingBag(13, 8, mode="sum", include_last_offset=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        offsets = torch.tensor([0, 2, 2, ids.numel()])
        x = self.words(ids).sum(1) * self.bag(ids) + self.sums(ids.flatten(), offsets)
        return x.square().mean()


class Bounded(nn.Module):
    """An embedding whose rows forward itself scales down."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(13, 8, max_norm=1.0), nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(ids)).square().mean()


class Attention(nn.Module):
    """torch's own attention with a mask, and its encoder layer with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True)
        self.encoder = nn.TransformerEncoderLayer(8, 2, dim_feedforward=12, dropout=0.2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.view(2, 2, 8)
        mask = nn.Transformer.generate_square_subsequent_mask(2)
        x = x + self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]
        return self.encoder(x).square().mean()


class Recurrent(nn.Module):
    """Layers whose frames Dynamo leaves to Python, around one that it captures."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 6, num_layers=2, dropout=0.2, batch_first=True)
        self.between = Two()
        self.gru = nn.GRU(8, 5, bidirectional=True, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.pad(self.lstm(x.view(2, 2, 8))[0], (0, 2))
        return self.gru(x)[0].square().mean() + self.between(x)


class Convolutions(nn.Module):
    """Along one and three dimensions, in groups, and turned round."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv1d(2, 6, 3, padding=1, groups=2), nn.GroupNorm(3, 6)
        self.back, self.cube = nn.ConvTranspose1d(6, 4, 3, stride=2), nn.Conv3d(1, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.back(self.norm(self.first(x.view(4, 2, 4))).relu())
        return self.cube(x.view(1, 1, 4, 4, 9)).square().mean()


class Random(Two):
    """Every way to draw: dropout in four forms, noise in two, and a choice."""

    def forward(self, x: torch.Tensor) -> Any:
        x = functional.dropout(self.first(x), 0.3) + torch.rand_like(x)
        x = functional.alpha_dropout(x, 0.2) + torch.randn(8) * torch.bernoulli(torch.full((8,), 0.5))
        x = functional.dropout2d(self.second(x).view(1, 4, 8, 1), 0.3).view(4, 8)
        x = functional.feature_alpha_dropout(x[:, :, None], 0.2)[:, :, 0][torch.randperm(4)]
        return x.square().mean()


class Again(Two):
    """Layers computed again in backward, in torch's older form too; one that both forms share."""

    def __init__(self) -> None:
        super().__init__()
        self.third = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        block = lambda x: functional.dropout(self.second(x).tanh(), 0.4) @ self.first.weight  # noqa: E731
        x = checkpoint(block, self.first(x), use_reentrant=True)
        x = checkpoint(block, self.third(x), use_reentrant=False)
        return x.square().mean()


class Product(torch.autograd.Function):
    """Saves a weight; has no gradient for its flag."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, flag: bool) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.t() if flag else x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight = ctx.saved_tensors
        return grads[0] @ weight, grads[0].t() @ x * 0.5, None


class Clamped(torch.autograd.Function):
    """Forward and context apart; backward lets everything through."""

    @staticmethod
    def forward(x: torch.Tensor, bound: float) -> torch.Tensor:
        return x.clamp(-bound, bound)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.bound = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] / ctx.bound, None


class Stopped(torch.autograd.Function):
    """No gradient for the weight, though it wants one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * weight

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 2, None


class ByHand(Two):
    def __init__(self) -> None:
        super().__init__()
        self.stopped = nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor) -> Any:
        x = Clamped.apply(Product.apply(self.first(x), self.second.weight, True), 0.8)
        return self.second(Stopped.apply(x, self.stopped)).square().mean()


class Hooked(Two):
    """Hooks on modules and, inside forward, on an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.first.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
        self.second.register_forward_hook(lambda module, inputs, output: output + module.bias)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.first(x).tanh()
        x.register_hook(lambda grad: grad * 0.5)
        return self.second(x).square().mean()


LAYERS = {
    "embeddings": Program(Embeddings, IDS),
    "an embedding that forward changes": Program(Bounded, IDS),
    "attention": Program(Attention, PLAIN),
    "recurrent": Program(Recurrent, PLAIN),
    "convolutions of other kinds": Program(Convolutions, PLAIN),
    "random numbers": Program(Random, PLAIN),
    "computed again": Program(Again, PLAIN),
    "functions written by hand": Program(ByHand, PLAIN),
    "hooks": Program(Hooked, PLAIN),
}
