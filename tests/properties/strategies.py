"""Hypothesis strategies for runs: a module, where its states rest, and what is done to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from tests.properties.described import DTYPES, Action, Described, Layer, Run, Setting
from tests.properties.interpreter import OPTIMIZERS
from tests.properties.modules import VOCABULARY, build

# Wide enough for an update in slices, and for a memory limit to matter; at most one layer of each module is.
WIDE = 5003
WIDTHS = (3, 1, 2, 5, 8, 13)


@dataclass
class _Stack:
    """The layers drawn so far: `made` are those that others may use again, all levels together."""

    draw: st.DrawFn
    width: int
    dtype: str
    made: list[Layer] = field(default_factory=list)
    wide: bool = False
    count: int = 0

    def layer(self, kinds: list[str]) -> Layer:
        kind = self.draw(st.sampled_from(kinds))
        layer = getattr(self, f"_{kind}")()
        self.width = layer.outputs
        return layer

    def kinds(self, nested: bool) -> list[str]:
        kinds = ["linear", "linear", "tanh", "dropout", "scale", "cast", "spare"]
        kinds += ["norm", "conv"] if self.width else []
        kinds += ["residual"] if self.width and not nested else []
        kinds += ["again"] * bool(self._fitting())
        kinds += ["tied"] * bool(self._with_weights_for_inputs())
        kinds += ["turned"] * bool(self._with_weights_for_outputs())
        return kinds

    def embedding(self) -> Layer:
        detail = self.draw(st.sampled_from((None, {"padding_idx": 2}, {"max_norm": 1.0})))
        # Stock torch itself is wrong where a weight that needs no gradient is changed by the forward.
        frozen = "max_norm" not in (detail or {}) and self._rarely()
        self.width = self.draw(st.sampled_from(WIDTHS))
        return self._add("embedding", self.width, detail=detail, frozen=frozen)

    def _linear(self) -> Layer:
        bias = self.draw(st.sampled_from((None, None, "no bias")))
        return self._add("linear", self._next_width(), detail=bias, frozen=self._rarely())

    def _conv(self) -> Layer:
        kernel = self.draw(st.sampled_from((1, 3)))
        return self._add("conv", self.draw(st.sampled_from(WIDTHS)), detail=kernel, frozen=self._rarely())

    def _norm(self) -> Layer:
        return self._add("norm", self.width, frozen=self._rarely())

    def _scale(self) -> Layer:
        return self._add("scale", self.width, detail=self._dtype(), frozen=self._rarely())

    def _tanh(self) -> Layer:
        return self._add("tanh", self.width)

    def _dropout(self) -> Layer:
        return self._add("dropout", self.width, detail=self.draw(st.sampled_from((0.5, 0.25))))

    def _spare(self) -> Layer:
        return self._add("spare", self.width)

    def _cast(self) -> Layer:
        self.dtype = self._dtype()
        return self._add("cast", self.width)

    def _again(self) -> Layer:
        other = self.draw(st.sampled_from(self._fitting()))
        return self._add("again", other.outputs, of=other.number)

    def _tied(self) -> Layer:
        other = self.draw(st.sampled_from(self._with_weights_for_inputs()))
        return self._add("tied", VOCABULARY if other.kind == "embedding" else other.outputs, of=other.number)

    def _turned(self) -> Layer:
        other = self.draw(st.sampled_from(self._with_weights_for_outputs()))
        return self._add("turned", other.inputs, of=other.number)

    def _residual(self) -> Layer:
        width, dtype, number = self.width, self.dtype, self._number()
        gate = self._dtype()
        inner = [self.layer(self.kinds(nested=True)) for _ in range(self.draw(st.integers(1, 3)))]
        if self.width != width:
            inner.append(self._add("linear", width))
        self.dtype = dtype
        return Layer(number, "residual", width, width, dtype, detail=gate, inner=tuple(inner))

    def _next_width(self) -> int:
        choices = [*WIDTHS, 0]
        if not self.wide and 0 < self.width < WIDE:
            choices.append(WIDE)
        width = self.draw(st.sampled_from(choices))
        self.wide = self.wide or width == WIDE
        return width

    def _dtype(self) -> str:
        return self.draw(st.sampled_from((self.dtype, self.dtype, *DTYPES)))

    def _rarely(self) -> bool:
        return self.draw(st.sampled_from((False, False, False, True)))

    def _fitting(self) -> list[Layer]:
        return [o for o in self.made if o.kind in ("linear", "norm", "conv", "tied") and self._takes(o, o.inputs)]

    def _with_weights_for_inputs(self) -> list[Layer]:
        linear = [other for other in self.made if other.kind == "linear" and self._takes(other, other.inputs)]
        embeddings = [other for other in self.made if other.kind == "embedding" and self._takes(other, other.outputs)]
        return linear + embeddings

    def _with_weights_for_outputs(self) -> list[Layer]:
        return [other for other in self.made if other.kind == "linear" and self._takes(other, other.outputs)]

    def _takes(self, other: Layer, width: int) -> bool:
        return (width, other.dtype) == (self.width, self.dtype)

    def _number(self) -> int:
        self.count += 1
        return self.count - 1

    def _add(self, kind: str, outputs: int, **others: Any) -> Layer:
        layer = Layer(self._number(), kind, self.width, outputs, self.dtype, **others)
        self.made.append(layer)
        return layer


@st.composite
def modules(draw: st.DrawFn) -> Described:
    stack = _Stack(draw, draw(st.sampled_from(WIDTHS)), draw(st.sampled_from(tuple(DTYPES))))
    layers = [stack.embedding()] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 5))):
        layers.append(stack.layer(stack.kinds(nested=False)))
    sizes = draw(st.sampled_from(((2,), (2,), (2, 3), (1, 2))))
    floats = layers[0].kind != "embedding"
    return Described(tuple(layers), draw(st.sampled_from((3, 1))), sizes, floats and draw(st.booleans()))


def _actions(module: Described) -> st.SearchStrategy[tuple[Action, ...]]:
    """Mostly steps as they are usual, with anything else that a user may do between."""
    nothing, batch = st.none(), st.sampled_from([f"batch {i}" for i in range(len(module.batches))])
    verbs: dict[str, st.SearchStrategy[Any]] = {
        "step": nothing,
        "zero_grad to None": nothing,
        "zero_grad to zero": nothing,
        "train on": batch,
        "evaluate": batch,
        "clip gradients to": st.sampled_from((0.125, 100.0)),
        "set lr to": st.sampled_from((0.03125, 0.0)),
        "save": nothing,
        "load weights": nothing,
        "load the optimizer": nothing,
        "look at a deepcopy": nothing,
        "look at norms": nothing,
        "look at states": nothing,
        "look at gradients": nothing,
    }
    if parameters := [name for name, _ in build(module).named_parameters()]:
        parameter = st.sampled_from(parameters)
        verbs |= dict.fromkeys(("edit", "replace data of", "set aside data of", "put back data of"), parameter)
        verbs |= dict.fromkeys(("keep an alias of", "freeze or thaw"), parameter)
        verbs |= dict.fromkeys(("keep", "double", "drop"), parameter.map(lambda name: f"the gradient of {name}"))

    def act(verb: str) -> st.SearchStrategy[Action]:
        return st.builds(Action, st.just(verb), verbs[verb])

    anything = st.sampled_from(list(verbs)).flatmap(act)
    train, forward = act("train on"), st.builds(Action, st.just("forward of"), batch)
    backward, step, clear = (st.just(Action(v)) for v in ("backward of what waits", "step", "zero_grad to None"))
    usual = [(train, step, clear), (anything,), (train, anything, step), (forward, anything, forward, backward)]
    if parameters:
        usual.append((act("set aside data of"), train, act("put back data of")))
    parts = st.sampled_from([st.tuples(*part) for part in usual]).flatmap(lambda part: part)
    chosen = st.lists(parts, min_size=2, max_size=8)
    return chosen.map(lambda parts: tuple(action for part in parts for action in part if _is_possible(action, module)))


def _is_possible(action: Action, module: Described) -> bool:
    """Stock torch itself is wrong where a weight that needs no gradient is changed by the forward."""
    changed = module.layers[0].kind == "embedding" and "max_norm" in (module.layers[0].detail or {})
    return not (changed and action == Action("freeze or thaw", "layers.0.weight"))


_HOME = st.sampled_from(("nvme", "nvme", "host"))
_SETTINGS = st.builds(
    Setting,
    optimizer=st.sampled_from(tuple(OPTIMIZERS)),
    params=_HOME,
    grads=_HOME,
    states=_HOME,
    memory=st.sampled_from(("64MiB", None)),
    prefetch=st.sampled_from(("auto", 0, 4096, 65536)),
    late=st.sampled_from((True, True, True, False)),
)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    module = draw(modules())
    return Run(module, draw(_SETTINGS), draw(_actions(module)))
