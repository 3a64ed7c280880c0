"""Programs about parameters: shared, frozen, of any type, computed from others, used elsewhere or not at all."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.nn.utils.parametrize import register_parametrization

from tests.right.programs import PLAIN, Two
from tests.right.runs import Program

IDS = tuple(torch.randint(0, 13, (3, 5), generator=torch.Generator().manual_seed(i)) for i in range(3))


class Shared(nn.Module):
    """One weight as an embedding, as a head and turned; one layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(13, 8), nn.Linear(8, 13, bias=False)
        self.head.weight = self.embedding.weight
        self.left, self.turned = nn.Linear(8, 8), nn.Linear(8, 8)
        self.turned.weight = self.left.weight
        self.again = self.left

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.again(self.left(self.embedding(ids)).tanh())
        x = x + functional.linear(x, self.turned.weight.t(), self.turned.bias)
        return functional.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())


class Adapted(nn.Module):
    """A frozen layer with trained float32 factors of a low rank beside it, whatever the layer is in."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(3, base.in_features) * 0.1)
        self.b = nn.Parameter(torch.zeros(base.out_features, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x.to(self.base.weight.dtype)).to(x.dtype) + x @ self.a.t() @ self.b.t()


def adapted() -> nn.Module:
    bases = nn.Linear(8, 13), nn.Linear(13, 8).bfloat16()
    return nn.Sequential(Adapted(bases[0]), nn.Tanh(), Adapted(bases[1]), nn.Linear(8, 3))


class EveryType(nn.Module):
    """Trained parameters of every floating type, and frozen ones of the types that only store."""

    def __init__(self) -> None:
        super().__init__()
        types = torch.float64, torch.float32, torch.bfloat16, torch.float16
        self.layers = nn.ModuleList(nn.Linear(8, 8, dtype=dtype) for dtype in types)
        self.turn = nn.Parameter(torch.randn(8, dtype=torch.complex64))
        self.small = nn.Parameter(torch.randn(8, 8).to(torch.float8_e4m3fn), requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(0.5, dtype=torch.float64), requires_grad=False)
        self.whole = nn.Parameter(torch.randint(-9, 9, (8, 8), dtype=torch.int8), requires_grad=False)
        self.chosen = nn.Parameter(torch.rand(8) > 0.3, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x.to(layer.weight.dtype)).tanh()
        x = torch.view_as_real(x.float() * self.turn).sum(-1)
        x = x @ (self.small.float() * self.scale.float()) + x @ self.whole.float()
        return torch.where(self.chosen, x, 0).square().mean()


class Sizes(nn.Module):
    """Parameters of no, one and odd numbers of elements, and of no dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.empty = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.empty(0, 8))
        self.wide, self.narrow = nn.Linear(8, 1031), nn.Linear(1031, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([x, x @ self.empty.t()], 1)
        return (self.scale * self.narrow(self.wide(x).relu())).square().mean()


class Symmetric(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu() + x.triu(1).t()


def computed() -> nn.Module:
    """Weights computed from others: orthogonal, normed, and in a way of the user's own."""
    own = nn.Linear(8, 8)
    register_parametrization(own, "weight", Symmetric())
    return nn.Sequential(
        parametrizations.orthogonal(nn.Linear(8, 8)), nn.Tanh(), own, parametrizations.weight_norm(nn.Linear(8, 3))
    )


class Statistics(nn.Module):
    """A mean and a count kept by hand: changed in place before or after their use, or put in another's place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("scale", torch.zeros(8))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.register_buffer("latest", torch.zeros(8), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x) * self.scale.view(1, 8).exp()
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
            self.scale.add_(0.5)
            self.seen += 1
            self.latest = x.amax(0)
        return ((x - self.mean) * self.latest).square().mean()


class Mixture(nn.Module):
    """Each row goes to the expert with the highest gate; the last expert never gets any."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(8, 2), nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gates = (self.router(x) - torch.tensor([0.0, 1e6])).softmax(-1)
        best = gates.argmax(-1)
        return (self.part(0, best, gates, x) + self.part(1, best, gates, x)).square().mean()

    def part(self, i: int, best: torch.Tensor, gates: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.where((best == i)[:, None], self.experts[i](x) * gates[:, i, None], 0)


class Dispatched(Mixture):
    """The same with Python that leaves out experts without rows: their gradient is None."""

    def part(self, i: int, best: torch.Tensor, gates: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        rows = (best == i).nonzero()[:, 0]
        if not len(rows):
            return torch.zeros_like(x)
        return torch.zeros_like(x).index_add(0, rows, self.experts[i](x[rows]) * gates[rows, i, None])


class Sometimes(Two):
    """A layer that only some batches use, before one that all use."""

    def forward(self, x: torch.Tensor, deep: bool) -> Any:
        if deep:
            x = self.first(x).tanh()
        return self.second(x).square().mean()


class Borrowed(Two):
    """Weights used outside their modules, and a penalty on all of them in the loss."""

    def forward(self, x: torch.Tensor) -> Any:
        x = functional.linear(x, self.first.weight + self.second.weight.t(), self.second.bias)
        return self.second(x).square().mean() + 0.01 * sum(p.square().sum() for p in self.parameters())


PARAMETERS = {
    "shared": Program(Shared, IDS),
    "adapters in float32 on frozen bases": Program(adapted, PLAIN),
    "every type": Program(EveryType, PLAIN),
    "sizes": Program(Sizes, PLAIN),
    "computed from others": Program(computed, PLAIN),
    # aot_eager computes in backward anew from the buffers, which by then hold what forward left there.
    "beside changing buffers": Program(Statistics, PLAIN, backend="eager"),
    "experts, one never used": Program(Mixture, PLAIN),
    "experts, those without rows left out": Program(Dispatched, PLAIN),
    "used by some batches": Program(Sometimes, tuple((x, bool(i % 2)) for i, x in enumerate((*PLAIN, *PLAIN)))),
    "used elsewhere and in the loss": Program(Borrowed, PLAIN),
}
