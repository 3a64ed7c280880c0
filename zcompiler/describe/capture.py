"""The graphs of a model, captured on tensors without bytes and taken through the stages as they come about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from zcompiler.describe.described import Described
from zcompiler.describe.ops import ops_text
from zcompiler.describe.resting import Resting
from zcompiler.lower.regions import fingerprint
from zcompiler.machine.choose import Chosen
from zcompiler.machine.parts import Parts
from zcompiler.options import Options
from zcompiler.plan.file import MadeFor, PlanFile
from zcompiler.schedule.model import Schedule
from zcompiler.stack import with_room
from zcompiler.stages.around import Around, states_per_parameter_byte
from zcompiler.stages.dump import plan_text
from zcompiler.stages.graph import Stages
from zcompiler.stages.planned import Planned
from zcompiler.stages.tiles import in_tiles_if_needed
from zcompiler.torch_compat.compiling import compile_through_aot
from zcompiler.torch_compat.sizes import size_hint
from zcompiler.torch_compat.tensors import is_fake, strided_like
from zcompiler.training.returned import with_returned_logits
from zcompiler.training.tensors import why_not_managed, why_not_movable

Boxed = Callable[[list[Any]], list[Any]]


class Capturing:
    """A backend that describes. It is told of what the parameters are copies, by id."""

    def __init__(
        self,
        options: Options,
        compute: str,
        parts: Parts,
        machine: Chosen,
        sources: Mapping[int, torch.Tensor],
        given: PlanFile | None,
    ) -> None:
        self.graphs: list[Described] = []
        self.notes: list[str] = []
        self.resting = Resting(parts, states_per_parameter_byte(options))
        self._machine, self._sources = machine, sources
        self._storages = Counter(t.untyped_storage()._cdata for t in sources.values())
        self._around = Around(
            options=options,
            compute=compute,
            parts=parts,
            machine=machine.machine,
            tiled=set(),
            why_left=self._why_left,
            decided=self.resting.decided,
            taken=self.resting.taken,
            notices_edits=lambda: True,  # as every file system does that a store should be on
            note=self.note,
            made_for=MadeFor.of(options, str(machine), compute),
            given=given,
        )

    def __call__(self, graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Called by torch.compile. Raises as the stages do."""
        name = f"graph{len(self.graphs)}"
        return with_room(
            in_tiles_if_needed, self._around, name, graph_module, inputs, lambda s: self._described(s, inputs)
        )

    def _described(self, stages: Stages, inputs: Sequence[Any]) -> Callable[..., Any]:
        calls: list[Callable[[], None]] = []

        def add(planned: Planned) -> None:
            passes: list[tuple[str, Schedule]] = []
            final = planned.scheduled(lambda title, schedule: passes.append((title, schedule)))
            reasons = plan_text(planned.plan, str(self._machine), planned.captured.tiles.values(), stages.losses.done)
            ops = ops_text(planned.captured, planned.step)
            cuts = (cut for cut in (planned.captured.forward, planned.captured.backward) if cut is not None)
            distinct = frozenset(fingerprint(region.module) for cut in cuts for region in cut.regions)
            self.graphs.append(
                Described(planned.name, planned.plan, reasons, tuple(passes), planned.step.works, ops, distinct)
            )
            calls.append(lambda: self.resting.call(planned, final, inputs))

        def partition(joint: torch.fx.GraphModule, joint_inputs: Any, **kwargs: Any) -> Any:
            forward, backward, planned = stages.partition(joint, joint_inputs, **kwargs)
            add(planned)
            return forward, backward

        def inference(graph_module: torch.fx.GraphModule, examples: Sequence[Any]) -> Boxed:
            add(stages.inference(graph_module))
            return forward(graph_module, examples)

        def forward(graph_module: torch.fx.GraphModule, examples: Sequence[Any]) -> Boxed:
            return _stand_in(graph_module, calls[0])

        def backward(graph_module: torch.fx.GraphModule, examples: Sequence[Any]) -> Boxed:
            return _stand_in(graph_module, lambda: None)

        compiled = compile_through_aot(
            stages.graph_module,
            inputs,
            forward=forward,
            backward=backward,
            inference=inference,
            partition=partition,
            inductor=self._around.fused,
        )
        return with_returned_logits(compiled, stages.losses)

    def note(self, fallback: str) -> None:
        if fallback not in self.notes:
            self.notes.append(fallback)

    def _why_left(self, p: torch.Tensor) -> str | None:
        source = self._sources.get(id(p), p)
        if not is_fake(source):
            return why_not_managed(source)
        if (why := why_not_movable(source)) is not None:
            return why
        return "another tensor shares its storage" if self._storages[source.untyped_storage()._cdata] > 1 else None


def _stand_in(graph_module: torch.fx.GraphModule, call: Callable[[], None]) -> Boxed:
    """What the compiled graph would be: tensors of the right form come out of it."""
    results = next(iter(graph_module.graph.find_nodes(op="output"))).args[0]
    made = [r.meta["val"] if isinstance(r, torch.fx.Node) else r for r in results]

    def run(args: list[Any]) -> list[Any]:
        args.clear()
        call()
        return [strided_like(v) if isinstance(v, torch.Tensor) else _number(v) for v in made]

    boxed: Any = run
    boxed._boxed_call = True
    return boxed


def _number(value: Any) -> Any:
    return size_hint(value) if isinstance(value, torch.SymInt) else value
