"""The aten graph of each region as text."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.fx

from zcompiler.analyse.sizes import short_name
from zcompiler.capture.captured import Captured
from zcompiler.capture.cut import Cut
from zcompiler.plan.step import PhaseNames, Step


def ops_text(captured: Captured, step: Step) -> str:
    """The regions of forward and backward, in order: what each takes, its operators, what it hands on."""
    lines = list(_phase(captured, captured.forward, step.forward))
    if captured.backward is not None and step.backward is not None:
        lines += _phase(captured, captured.backward, step.backward)
    return "".join(f"{line}\n" for line in lines)


def _phase(captured: Captured, cut: Cut, names: PhaseNames) -> Iterator[str]:
    for title, region in zip(names.regions, cut.regions, strict=True):
        yield f"region {title}"
        for node in region.module.graph.nodes:
            known = captured.parameter(node.name) if node.op == "placeholder" else None
            yield f"  {_line(node)}" + (f"  {known.name}" if known is not None else "")
        yield ""


def _line(node: torch.fx.Node) -> str:
    if node.op == "placeholder":
        return f"{'takes':<10} %{node.name}{_form(node)}"
    if node.op == "output":
        results = node.args[0] if isinstance(node.args[0], tuple | list) else (node.args[0],)
        return f"{'hands on':<10} {', '.join(_argument(r) for r in results)}"
    arguments = [_argument(a) for a in node.args]
    arguments += [f"{name}={_argument(a)}" for name, a in node.kwargs.items()]
    return f"%{node.name:<20} = {_target(node)}({', '.join(arguments)}){_form(node)}"


def _target(node: torch.fx.Node) -> str:
    target = node.target
    return str(target) if isinstance(target, str) or "." in str(target) else getattr(target, "__name__", str(target))


def _argument(value: object) -> str:
    """Names as they are used, with % in front, wherever they stand."""
    if isinstance(value, torch.fx.Node):
        return f"%{value.name}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_argument, value))}]"
    return str(value)


def _form(node: torch.fx.Node) -> str:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return f"  {short_name(value.dtype)} [{','.join(str(n) for n in value.shape)}]"
    if isinstance(value, list | tuple):
        forms = (f"{short_name(v.dtype)} [{','.join(map(str, v.shape))}]" for v in value if isinstance(v, torch.Tensor))
        return f"  {', '.join(forms)}"
    return ""
