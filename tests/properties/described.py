"""A small module, what a user does to it, and where its states rest, as data: easy to draw, to shrink and to read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Layer:
    """`inputs` and `outputs` are widths; `of` is the number of the layer that this one uses again or shares with."""

    number: int
    kind: str
    inputs: int
    outputs: int
    dtype: str
    detail: Any = None
    frozen: bool = False
    of: int | None = None
    inner: tuple[Layer, ...] = ()

    def lines(self, indent: str = "  ") -> Iterator[str]:
        words = [f"{self.number} {self.kind}"]
        words += [f"of {self.of}"] if self.of is not None else []
        words += [f"{self.inputs}->{self.outputs} {self.dtype}"]
        words += [str(self.detail)] if self.detail is not None else []
        words += ["frozen"] if self.frozen else []
        yield indent + " ".join(words)
        for layer in self.inner:
            yield from layer.lines(indent + "  ")


@dataclass(frozen=True)
class Described:
    """A module. Its input is `tokens` vectors of the first layer's width, or as many numbers for an embedding."""

    layers: tuple[Layer, ...]
    tokens: int = 3
    batches: tuple[int, ...] = (2,)  # how many sequences each batch has
    input_grads: bool = False

    @property
    def casts_weights(self) -> bool:
        return any(layer.kind == "residual" and layer.detail != layer.dtype for layer in self.layers)

    def text(self) -> str:
        wanted = ", whose gradient is wanted" if self.input_grads else ""
        head = f"module with batches of {self.batches} sequences of {self.tokens}{wanted}"
        return "\n".join([head, *(line for layer in self.layers for line in layer.lines())])


@dataclass(frozen=True)
class Action:
    """One thing that a user does; `of` is a batch, a parameter or a number."""

    verb: str
    of: Any = None

    def text(self) -> str:
        return self.verb if self.of is None else f"{self.verb} {self.of}"


@dataclass(frozen=True)
class Setting:
    """`memory` None: the least that zinf takes."""

    optimizer: str
    params: str
    grads: str
    states: str
    memory: str | None
    prefetch: int | str
    late: bool = True

    def text(self) -> str:
        homes = f"params {self.params}, grads {self.grads}, states {self.states}"
        room = f"memory {self.memory or 'as little as can be'}, prefetch {self.prefetch}"
        return f"{self.optimizer}; {homes}; {room}{'' if self.late else ', not late'}"


@dataclass(frozen=True, repr=False)
class Run:
    module: Described
    setting: Setting
    actions: tuple[Action, ...]

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """How hypothesis prints it."""
        printer.text(repr(self))

    def __repr__(self) -> str:
        actions = [f"  {i} {action.text()}" for i, action in enumerate(self.actions)]
        return "\n".join(["", self.module.text(), self.setting.text(), *actions])
