"""Small aten graphs as text, tiled and cut into regions as text again.

x: f32[5,64]                  an input
w: f32[64,64] parameter       or `tangent`, which makes it a backward
y = aten.mm.default(x, w)     an op; arguments are names, numbers, lists and dtypes as "bf16"
return y, g for w             results; `for w`: the gradient of w
"""

from __future__ import annotations

import ast
import re
from typing import Any

import torch
from torch._subclasses import FakeTensorMode

from zcompiler.capture.cut import Cut, cut
from zcompiler.capture.tile import TileOperators
from zcompiler.capture.tiling import tiling

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
_OPS = {"aten": torch.ops.aten, "prims": torch.ops.prims}


class Graph:
    """A graph that was read from text."""

    def __init__(self, text: str) -> None:
        self.graph = torch.fx.Graph()
        self.nodes: dict[str, torch.fx.Node] = {}
        self.parameters: dict[str, torch.fx.Node] = {}
        self.tangents: list[torch.fx.Node] = []
        self.gradients: dict[str, int] = {}
        with FakeTensorMode():
            for line in text.strip().splitlines():
                self._line(line)

    def _line(self, line: str) -> None:
        if found := re.fullmatch(r"(\w+): (\w+)\[([\d,]*)\](?: (\w+))?", line):
            name, dtype, shape, what = found.groups()
            node = self.nodes[name] = self.graph.placeholder(name)
            node.meta["val"] = torch.empty([int(n) for n in shape.split(",") if n], dtype=_DTYPES[dtype])
            if what == "parameter":
                self.parameters[name] = node
            elif what == "tangent":
                self.tangents.append(node)
        elif found := re.fullmatch(r"(\w+) = (\w+)\.(\w+)\.(\w+)\((.*)\)", line):
            name, namespace, op, overload, arguments = found.groups()
            target = getattr(getattr(_OPS[namespace], op), overload)
            call: Any = ast.parse(f"f({arguments})", mode="eval").body
            args = tuple(self._argument(a) for a in call.args)
            node = self.nodes[name] = self.graph.create_node("call_function", target, args, name=name)
            node.meta["val"] = target(*torch.fx.node.map_arg(args, lambda n: n.meta["val"]))
        else:
            results = [part.partition(" for ") for part in line.removeprefix("return ").split(", ")]
            self.gradients = {of: i for i, (_, _, of) in enumerate(results) if of}
            self.graph.output(tuple(self.nodes[name] for name, _, _ in results))

    def _argument(self, written: ast.expr) -> Any:
        if isinstance(written, ast.Name):
            return self.nodes[written.id]
        value = ast.literal_eval(written)
        return _DTYPES[value] if isinstance(value, str) else value

    def tiled(self, factors: dict[str, int]) -> str:
        """The regions that it is cut into with these parameters in tiles."""
        tilings = {n: tiling(i, n, self.nodes[n].meta["val"], factors[n]) for i, n in enumerate(factors)}
        tile = TileOperators(self.graph)
        parameters = frozenset(self.parameters.values())
        chosen = {self.nodes[n]: made for n, made in tilings.items() if made is not None}
        gradients = {at: made for n, at in self.gradients.items() if (made := tilings.get(n)) is not None}
        tile.apply(chosen, parameters, gradients)
        self.graph.lint()
        module = torch.fx.GraphModule({}, self.graph)
        anchors = self.tangents or None
        made = cut(module, parameters, lambda node: "l", anchors, tiles=tile.owner, rows=frozenset(tile.tiles))
        rows = {node.name: f"{of.name}[{of.start}:{of.start + of.length}]" for node, of in tile.tiles.items()}
        return _text(made, rows)


def _text(made: Cut, names: dict[str, str]) -> str:
    for name, piece in made.pieces.items():
        where = [":"] * piece.axis + [f"{piece.start}:{piece.start + piece.length}"]
        names[name] = f"{piece.whole}[{','.join(where)}]"
    lines = []
    for region in made.regions:
        lines.append(f"region {region.unit}")
        for node in region.module.graph.nodes:
            if node.op == "call_function":
                args = ", ".join(names.get(str(a), str(a)) for a in node.args)
                lines.append(f"  {node.name} = {node.target}({args})")
        lines.append(f"  gives {' '.join(region.outputs)}")
    for name, joined in made.joins.items():
        how = "the sum of" if joined.axis is None else f"along {joined.axis}:"
        lines.append(f"{name} is {how} {' '.join(joined.parts)}")
    return "\n".join([*lines, f"return {', '.join(map(str, made.results))}"]) + "\n"
