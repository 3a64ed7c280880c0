"""A captured graph as a schedule in which everything rests in the compute tier: what the passes start from."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch.fx

from zcompiler.analyse.alike import alike
from zcompiler.analyse.buckets import Bucket
from zcompiler.analyse.sizes import Sizes, dtype_name, is_plain, is_strided, nbytes, shape_of, working_memory
from zcompiler.analyse.work import work_of
from zcompiler.capture.captured import TOKEN, Captured
from zcompiler.capture.cut import Cut, CutRegion
from zcompiler.machine.work import Work
from zcompiler.plan.plan import Placement
from zcompiler.plan.room import more_to_sum, with_releases, with_room_for_parts, with_room_for_stored_gradients
from zcompiler.schedule.model import Op, Region, Schedule, Tier, Value


@dataclass(frozen=True, slots=True)
class PhaseNames:
    """How the names in one phase's graph map to values of the schedule.

    `values` leaves parameters out: a region's parameter is one slot of a bucket's value, `slots[name]`. Views of one
    storage share a value.
    `grads` says which slot of which gradient value a result of backward is, `buckets` whose gradient a value is.
    `regions` are the titles of the cut's regions; `given` that of the region which stands for autograd handing over
    the incoming gradients, if any.
    """

    values: dict[str, str] = field(default_factory=dict)
    slots: dict[str, tuple[str, int]] = field(default_factory=dict)
    grads: dict[str, tuple[str, int]] = field(default_factory=dict)
    buckets: dict[str, str] = field(default_factory=dict)
    regions: tuple[str, ...] = ()
    given: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """The bare schedule of a graph and, for each phase, how its graph's names map to it.

    `works` has the work of each run, by the name of what it runs, which passes keep wherever they put the run. `saved`
    has the local names under which backward gets each activation; those in `fixed` are no bytes that can be moved and
    put together again, or go back to the caller as they are. `parts` are the gradients of tiles.
    """

    schedule: Schedule
    forward: PhaseNames
    backward: PhaseNames | None
    works: Mapping[str, Work] = field(default_factory=dict)
    saved: dict[str, tuple[str, ...]] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()
    parts: frozenset[str] = frozenset()

    @property
    def gradients(self) -> dict[str, str]:
        """The gradient values, and whose they are: the bucket of parameters."""
        return self.backward.buckets if self.backward is not None else {}

    def placed(self, placement: Placement) -> Step:
        """The same for a placement: states at their home (no pass moves them, the update does), and room for gradients
        that go to the store."""
        values = tuple(
            replace(v, home=placement[v.name.removesuffix(":state")].optimizer) if v.kind == "state" else v
            for v in self.schedule.values
        )
        compute = self.schedule.compute_tier.name
        stored = frozenset(v for v, bucket in self.gradients.items() if placement[bucket].grads != compute)
        schedule = replace(self.schedule, values=values)
        if stored:
            schedule = with_room_for_stored_gradients(schedule, stored)
        if self.parts - stored:
            schedule = with_room_for_parts(schedule, self.parts - stored)
        return replace(self, schedule=schedule)


def bare_step(
    name: str,
    captured: Captured,
    buckets: Sequence[Bucket],
    tiers: tuple[Tier, ...],
    states: dict[str, int],
    fused: bool,
    sizes: Sizes | None = None,
    uncut: bool = False,
) -> Step:
    """The schedule of `captured` before any pass: only runs, and releases of what they leave behind.

    `states` gives the bytes of optimizer state of each bucket; they take part so that a plan counts them. `fused`:
    whether Inductor compiles the regions. With `sizes` it is that for these sizes of symbols, without the works.
    `uncut`: each phase is a single region, and nothing moves.
    """
    return _Builder(name, captured, buckets, tiers, states, fused, sizes, uncut).build()


class _Builder:
    def __init__(
        self,
        name: str,
        captured: Captured,
        buckets: Sequence[Bucket],
        tiers: tuple[Tier, ...],
        states: dict[str, int],
        fused: bool,
        sizes: Sizes | None,
        uncut: bool,
    ) -> None:
        self.fused, self.priced, self.sizes, self.uncut = fused, sizes is None, sizes or Sizes(), uncut
        self.works: dict[str, Work] = {}
        self.incoming: frozenset[str] = frozenset()
        self.known: dict[Hashable, tuple[Work | None, int]] = {}
        self.name, self.captured, self.buckets, self.tiers, self.states = name, captured, buckets, tiers, states
        self.compute = next(t.name for t in tiers if t.compute)
        self.bucket_slot = {p: (b, i) for b in reversed(buckets) for i, p in enumerate(b.positions)}
        self.bucket_slot |= {p: (b, i) for b in buckets if b.tile is None for i, p in enumerate(b.positions)}
        self.tile_bucket = {b.tile: b for b in buckets if b.tile is not None}
        self.values: dict[str, Value] = {}
        self.parts: list[str] = []
        self.regions: list[Region] = []

    def build(self) -> Step:
        captured = self.captured
        for bucket in self.buckets:
            self._add(Value(bucket.name, "param", bucket.dtype, bucket.nbytes, home=self.compute))
        forward = PhaseNames()
        self._inputs(captured.forward, forward)
        forward_outputs = {n for n in captured.forward.results[: captured.user_outputs] if isinstance(n, str)}
        forward = self._phase("fwd", captured.forward, forward, outputs=forward_outputs)
        backward = None
        if captured.backward is not None:
            backward = PhaseNames()
            self._inputs(captured.backward, backward, known=forward.values)
            given = self._tangents(captured.backward, backward)
            self._gradients(captured.backward, backward)
            outputs = {n for n in captured.backward.results if isinstance(n, str) and n not in backward.grads}
            backward = replace(self._phase("bwd", captured.backward, backward, outputs=outputs), given=given)
            for bucket in self.buckets:
                if self.states.get(bucket.name):
                    size = self.states[bucket.name]
                    self._add(Value(f"{bucket.name}:state", "state", bucket.resting, size, home=self.compute))
        schedule = Schedule(self.name, self.tiers, tuple(self.values.values()), tuple(self.regions))
        return Step(
            with_releases(schedule), forward, backward, self.works, *self._saved(forward), frozenset(self.parts)
        )

    def _saved(self, forward: PhaseNames) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
        saved: dict[str, tuple[str, ...]] = {}
        fixed: dict[str, None] = {}
        backward, handed_over = self.captured.backward, set(self.captured.forward.results[self.captured.user_outputs :])
        for local in backward.inputs if backward is not None else ():
            value = forward.values.get(local, "") if local in handed_over else ""
            if value and self.values[value].kind == "act":
                saved[value] = (*saved.get(value, ()), local)
                if local in backward.results or not is_plain(backward.fakes.get(local)):  # type: ignore[union-attr]
                    fixed[value] = None
        return saved, tuple(fixed)

    def _nbytes(self, fake: object) -> int:
        return nbytes(fake, self.sizes)

    def _value(self, name: str, kind: str, fake: object) -> Value:
        return Value(name, kind, dtype_name(fake), self._nbytes(fake), shape_of(fake, self.sizes))

    def _add(self, value: Value) -> str:
        name, count = value.name, 1
        while name in self.values:
            count += 1
            name = f"{value.name}:{count}"
        self.values[name] = replace(value, name=name)
        return name

    def _inputs(self, cut: Cut, names: PhaseNames, known: dict[str, str] | None = None) -> None:
        incoming = self._incoming(cut)
        for local in {n for region in cut.regions for n in region.inputs if n in self.captured.tiles}:
            names.slots[local] = (self.tile_bucket[self.captured.tiles[local]].name, 0)
        for local in cut.inputs:
            parameter = self.captured.parameter(local)
            if parameter is not None:
                if parameter.position in self.bucket_slot:
                    bucket, slot = self.bucket_slot[parameter.position]
                    names.slots[local] = (bucket.name, slot)
            elif local == TOKEN:
                continue
            elif known is not None and local in known:
                names.values[local] = known[local]
            else:
                position = self.captured.positions.get(local)
                name = self.captured.inputs[position].name if position is not None else local
                fake = cut.fakes[local]
                kind = "act" if local in incoming else "input"
                names.values[local] = self._add(self._value(name, kind, fake))

    def _incoming(self, cut: Cut) -> set[str]:
        """Backward's inputs that are neither forward's inputs nor saved by it: the incoming gradients."""
        saved = {*self.captured.forward.inputs, *(r for r in self.captured.forward.results if isinstance(r, str))}
        return set(cut.inputs) - saved if cut is self.captured.backward else set()

    def _tangents(self, backward: Cut, names: PhaseNames) -> tuple[str, ...]:
        """Autograd makes an incoming gradient for every output, zeros for those the loss does not use: they weigh."""
        incoming = self._incoming(backward)
        made = tuple(names.values[n] for n in backward.inputs if n in incoming)
        self.incoming = frozenset(made)
        if not made:
            return ()
        size = sum(self.values[name].nbytes for name in made)
        self.works["bwd/tangents"] = Work(moved=size, kernels=len(made), made=size)
        self.regions.append(Region("bwd/tangents", (Op("compute", "run", "bwd/tangents", writes=made),)))
        return ("bwd/tangents",)

    def _gradients(self, backward: Cut, names: PhaseNames) -> None:
        """Gradients as buckets, one for each bucket of parameters and region that makes some of them.

        A sparse one is no part of its bucket: it has not its parameter's bytes, so it stays an output in memory.
        """
        made = {out: i for i, region in enumerate(backward.regions) for out in region.outputs}
        made |= {whole: max(made[part] for part in joined.parts) for whole, joined in backward.joins.items()}
        tiles: dict[tuple[int | None, int], Bucket] = {(t.position, t.index): b for t, b in self.tile_bucket.items()}
        groups: dict[tuple[str, int], list[tuple[str, int]]] = {}
        for primal, local in zip(self.captured.forward.inputs, backward.results, strict=False):
            position = self.captured.positions.get(primal)
            if not isinstance(local, str) or local in names.grads or not is_strided(backward.fakes.get(local)):
                continue
            if local in backward.joins and (position, 0) in tiles:
                for i, part in enumerate(backward.joins[local].parts):
                    bucket = tiles[position, i]
                    value = self._add(
                        Value(f"{bucket.name}:grad", "grad", bucket.resting, bucket.whole, home=self.compute)
                    )
                    self.parts.append(value)
                    names.grads[part] = (value, 0)
                    names.buckets[value] = bucket.name
                names.grads[local] = ("", 0)
            elif local in made and position in self.bucket_slot:
                bucket, slot = self.bucket_slot[position]
                groups.setdefault((bucket.name, made[local]), []).append((local, slot))
                names.grads[local] = ("", slot)
        by_name = {b.name: b for b in self.buckets}
        for (name, _), members in groups.items():
            bucket = by_name[name]
            whole = (
                bucket.whole
                if len(members) == len(bucket.positions) and bucket.tile is None
                else sum(self._nbytes(backward.fakes[local]) for local, _ in members)
            )
            title = f"{bucket.tile.name if bucket.tile else name}:grad"
            value = self._add(Value(title, "grad", bucket.resting, whole, home=self.compute))
            names.buckets[value] = name
            for local, slot in members:
                names.grads[local] = (value, slot)

    def _phase(self, phase: str, cut: Cut, names: PhaseNames, outputs: set[str]) -> PhaseNames:
        region_names: list[str] = []
        storages: dict[str, str] = {}  # the local name that made a storage -> its value
        handed_out = {cut.roots.get(n, n) for n in outputs}
        joined = {part: whole for whole, join in cut.joins.items() for part in join.parts}
        for region in cut.regions:
            reads: dict[str, None] = {}
            for local in region.inputs:
                local = cut.pieces[local].whole if local in cut.pieces else local
                if local in names.slots:
                    reads[names.slots[local][0]] = None
                elif local in names.values:
                    reads[names.values[local]] = None
            writes: dict[str, None] = {}
            put_together = 0
            for local in region.outputs:
                if local in names.grads:
                    writes[names.grads[local][0]] = None
                    continue
                if (whole := joined.get(local)) is not None:
                    put_together += self._nbytes(cut.fakes[local]) + more_to_sum(cut, whole, self.sizes)
                    local = whole
                    if local in names.grads:
                        writes[names.grads[local][0]] = None
                        continue
                root = cut.roots.get(local, local)
                root = local if root in names.slots else root  # no region hands on a view of what it gathered
                value = storages.get(root) or names.values.get(root)
                if value is None or (whole is None and local in outputs and self.values[value].kind == "act"):
                    fake, kind = cut.fakes[root], "output" if root in handed_out else "act"
                    new = self._add(self._value(local, kind, fake))
                    if value is None:
                        storages[root] = new
                    value = new
                    writes[value] = None
                elif whole is not None:
                    writes[value] = None
                names.values[local] = value
            title = _unique(f"{phase}/{region.unit}", [r.name for r in self.regions])
            region_names.append(title)
            work, held = self._alone(region, names) if self.uncut else self._asks(region.module)
            if work is not None:
                self.works[title] = replace(work, moved=work.moved + 2 * put_together)
            run = Op(
                "compute", "run", title, reads=tuple(reads), writes=tuple(writes), work=held + put_together,
            )  # fmt: skip
            self.regions.append(Region(title, (run,)))
        return replace(names, regions=tuple(region_names))

    def _asks(self, region: torch.fx.GraphModule) -> tuple[Work | None, int]:
        """The work of a region and the bytes it works in: found out once for all that are alike."""
        key = alike(region)
        if key not in self.known:
            self.known[key] = self._work(region), working_memory(region, self.sizes)
        return self.known[key]

    def _work(self, region: torch.fx.GraphModule) -> Work | None:
        return work_of(region, self.fused) if self.priced else None

    def _alone(self, region: CutRegion, names: PhaseNames) -> tuple[Work | None, int]:
        """The same of the only region of a phase. Of what it is given nobody else holds the activations: it lets go of
        each as soon as it can, unlike a region that is given copies from the store, or that others follow."""
        placeholders = region.module.graph.find_nodes(op="placeholder")
        given = {}
        for node, local in zip(placeholders, region.inputs, strict=True):
            value = self.values.get(names.values.get(local, ""))
            if value is not None and value.kind == "act" and value.name not in self.incoming:
                given[node] = (value.name, value.nbytes)
        return self._work(region.module), working_memory(region.module, self.sizes, given)


def _unique(name: str, taken: Iterable[str]) -> str:
    taken, count, candidate = set(taken), 1, name
    while candidate in taken:
        count += 1
        candidate = f"{name}:{count}"
    return candidate
