"""The vocabulary of a schedule: plain frozen data that passes rewrite, the text prints and the executor runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

# What a value is. `input` belongs to the user and is not counted; `output` is handed to the user; `act` is made by
# one run and used by later ones (a saved activation when forward makes it and backward uses it).
KINDS = ("param", "grad", "state", "act", "input", "output")


@dataclass(frozen=True, slots=True)
class Tier:
    """A place bytes can be: `budget` in bytes (None: unlimited); `compute` marks the one tier that regions run from."""

    name: str
    budget: int | None = None
    compute: bool = False


@dataclass(frozen=True, slots=True)
class Value:
    """Something that occupies memory. For a parameter, gradient or state: the bucket of one unit, gathered together.

    `nbytes` is the full size; `shard` the bytes one rank keeps at rest (None: not partitioned, rests in full);
    `home` the tier it rests in (None: it has no home and lives between the op that makes it and its release).
    `shape` is for readers and may be None (a bucket of several tensors).
    """

    name: str
    kind: str
    dtype: str
    nbytes: int
    shape: tuple[int, ...] | None = None
    shard: int | None = None
    home: str | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """One line of a schedule: something a lane does. Line order is issue order.

    kind          value            form             src, dst
    read          what is read     shard            nvme tier -> host tier
    write         what is written  shard            host tier -> nvme tier
    reload        what is moved    shard            host tier -> device tier
    offload       what is moved    shard            device tier -> host tier
    all_gather    a parameter      shard -> full    compute tier
    reduce_scatter a gradient      full -> shard    compute tier
    run           the region       -                compute tier; `reads`, `writes` name values, `work` is its
                                                    temporaries in bytes
    release       what is freed    shard or full    `src` is the tier it is freed from

    `after` names the events (ops on other lanes) it waits for; `for_region` says which region a prefetch is for.
    """

    lane: str
    kind: str
    value: str
    form: str = "full"
    src: str = ""
    dst: str = ""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    work: int = 0
    after: tuple[str, ...] = ()
    for_region: str = ""


@dataclass(frozen=True, slots=True)
class Region:
    """The ops issued around the compute of one unit in one phase; named `phase/unit` (fwd, bwd, update)."""

    name: str
    ops: tuple[Op, ...]

    @property
    def phase(self) -> str:
        return self.name.split("/", 1)[0]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything one rank does in a step (or in the update), in issue order."""

    name: str
    tiers: tuple[Tier, ...]
    values: tuple[Value, ...]
    regions: tuple[Region, ...]
    rank: int = 0
    world: int = 1
    _by_name: dict[str, Value] = field(init=False, repr=False, compare=False, hash=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._by_name.update((v.name, v) for v in self.values)

    def value(self, name: str) -> Value:
        return self._by_name[name]

    def tier(self, name: str) -> Tier:
        return next(t for t in self.tiers if t.name == name)

    @property
    def compute_tier(self) -> Tier:
        return next(t for t in self.tiers if t.compute)

    def ops(self) -> Iterator[tuple[Region, Op]]:
        for region in self.regions:
            for op in region.ops:
                yield region, op

    def __str__(self) -> str:
        from zcompiler.schedule.text import print_schedule

        return print_schedule(self)
