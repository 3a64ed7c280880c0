"""Models that save tensors of every kind for backward, large enough to be worth a move; each forward gives the loss
first."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.right.runs import Program

WIDTH, LENGTH, BATCH = 32, 64, 2


class Deep(nn.Module):
    """Layers one after the other; the others start from it."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = nn.functional.gelu(layer(x))
        return x.square().mean()


class Attention(nn.Module):
    """A block as in a transformer: queries, keys and values are views of one product."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4).unbind(0)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.2, is_causal=True)
        x = x + nn.functional.dropout(self.out(seen.transpose(1, 2).reshape(x.shape)), 0.2)
        return x + self.down(nn.functional.gelu(self.up(x)))


class Transformer(nn.Module):
    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(depth))

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


class Views(Deep):
    """Square transposes, halves, what is expanded, and several views of one storage, made in one layer and another."""

    def forward(self, x: torch.Tensor) -> Any:
        first, second, third = self.layers
        y = first(x.view(-1, WIDTH)[:WIDTH]).tanh()
        y = y @ y.t() + y.t() @ y
        left, right = second(torch.cat([y, y, y])).tanh().chunk(2, -1)
        z = torch.cat([left * right, right.flip(0) * left], -1)
        wide = z.sum(-1, keepdim=True).exp().expand(-1, WIDTH)
        return third(wide * z).square().mean() + (z.view(3, WIDTH, WIDTH).transpose(0, 1)[1:] * left[0, 0]).cos().mean()


class Crossing(Deep):
    """What several layers read, and of which one region of backward hands a view to the next."""

    def __init__(self) -> None:
        super().__init__(6)

    def forward(self, x: torch.Tensor) -> Any:
        first, second, third, fourth, fifth, last = self.layers
        hidden = nn.functional.gelu(first(x))
        other = hidden.flip(0).exp()
        y = second(x) * other.transpose(0, 1).reshape(x.shape)
        z = torch.bmm(fourth(third(hidden)), other.transpose(1, 2)) @ other
        z = torch.bmm(fifth(z), other.transpose(1, 2)) @ other
        return last(z + y).square().mean()


class HandsOut(Deep):
    """Intermediates, views of them and of the input go to the user as well as to backward."""

    def __init__(self) -> None:
        super().__init__(5)

    def forward(self, x: torch.Tensor) -> Any:
        first, second, *others = self.layers
        hidden = first(x).sigmoid()
        other = second(hidden).sigmoid()
        y = other * hidden * x
        for layer in others:
            y = nn.functional.gelu(layer(y))
        return y.square().mean(), hidden, other.transpose(0, 1), x[1:], hidden.detach()


class Tied(Deep):
    """One weight in the first and in the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[-1].weight = self.layers[0].weight


class Checkpointed(Deep):
    """Layers that the user has computed again, dropout included."""

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = checkpoint(lambda x, layer=layer: layer(nn.functional.dropout(x, 0.4)).tanh(), x, use_reentrant=False)
        return x.square().mean()


class Autocast(Deep):
    """Activations in 16 bits, from weights that are cast, in layers that the user has computed again."""

    def forward(self, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            for layer in self.layers:
                x = checkpoint(lambda x, layer=layer: layer(x).tanh(), x, use_reentrant=False)
        return x.float().square().mean()


class Rounded(torch.autograd.Function):
    """Saves what it was given in eight bits."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x.to(torch.float8_e4m3fn))
        return x.sin()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (rounded,) = ctx.saved_tensors
        return grad * rounded.float().cos()


class Types(Deep):
    """Complex numbers, truth values, whole numbers and eight bits among what is saved."""

    def forward(self, x: torch.Tensor) -> Any:
        first, second, third = self.layers
        x = torch.cat([x] * 4)
        turned = torch.complex(first(x), x).conj() * torch.complex(x, first(x))
        y = second(torch.where(turned.real > turned.imag, turned.abs(), turned.angle()))
        y = Rounded.apply(y.double().float().sort(-1).values)
        return third(y.masked_fill(y < 0.1, 0.5).bfloat16().float()).square().mean() + y[:, :0].sum() + y.amax()


def convolutions() -> nn.Module:
    """Running statistics beside what is saved; the loss is the first number."""
    layers = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4), nn.Flatten(0)
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


def inputs(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(*shape, generator=generator) for shape in shapes)


X = inputs(*[(BATCH, LENGTH, WIDTH)] * 3)
PROGRAMS = {
    "layers": Program(Deep, X),
    "attention and dropout": Program(Transformer, X),
    "views": Program(Views, X),
    "a view that crosses regions": Program(Crossing, X),
    "intermediates handed out": Program(HandsOut, X),
    "tied weights": Program(Tied, X),
    "checkpointed layers": Program(Checkpointed, X),
    "autocast": Program(Autocast, X),
    "types": Program(Types, X),
    "convolutions": Program(
        convolutions, tuple(x.to(memory_format=torch.channels_last) for x in inputs((4, 3, 16, 16), (4, 3, 16, 16)))
    ),
}
