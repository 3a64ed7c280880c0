"""What a user may say in `torch.compile(model, backend="zinf", options={...})`: one table, parsed and documented."""

from __future__ import annotations

import glob
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NoReturn

from zcompiler.errors import ZinfError, did_you_mean
from zcompiler.free_memory import free_memory
from zcompiler.quantities import SIZES, meant, parse_quantity

HOMES = ("host", "nvme", "auto")
COMPUTE = ("inductor", "eager")
MACHINES = ("laptop", "h200-server", "dgx-2")  # descriptions that are shipped
ACTIVATIONS = ("auto", "keep", "nvme", "recompute", "recompute+nvme")
PLANNED = ("place", "activations", "prefetch", "tile")  # what a file of plans has decided

# The elementwise classes of torch.optim and the states, each of its parameter's shape and dtype, that they keep with
# their default settings; what other settings add is known once the real optimizer is seen.
OPTIMIZER_STATES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "SGD": (),
        "Adam": ("exp_avg", "exp_avg_sq"),
        "AdamW": ("exp_avg", "exp_avg_sq"),
        "RMSprop": ("square_avg",),
        "Adagrad": ("sum",),
        "NAdam": ("exp_avg", "exp_avg_sq"),
        "Adamax": ("exp_avg", "exp_inf"),
        "RAdam": ("exp_avg", "exp_avg_sq"),
        "Adadelta": ("square_avg", "acc_delta"),
        "Rprop": ("prev", "step_size"),
        "ASGD": ("ax",),
    }
)


class OptionError(ZinfError, ValueError):
    """An option that zinf does not know, or a value that it cannot take."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where each kind of model state rests: "host", "nvme", or "auto" (the planner decides unit by unit)."""

    params: str = "auto"
    grads: str = "auto"
    optimizer: str = "auto"


@dataclass(frozen=True, slots=True)
class Activations:
    """What becomes of what a unit's forward makes and backward wants: (glob over units, choice), the first that
    matches; "keep" where none does. "auto" leaves it to the planner."""

    rules: tuple[tuple[str, str], ...] = ()

    def of(self, unit: str) -> str:
        return next((choice for units, choice in self.rules if fnmatchcase(unit, units)), "keep")

    @property
    def offload(self) -> bool:
        """Whether any unit's may go to the store."""
        return any(choice.endswith("nvme") for _, choice in self.rules)

    def recomputes(self, unit: str) -> bool:
        return self.of(unit).startswith("recompute")

    def offloads(self, unit: str) -> bool:
        return self.of(unit).endswith("nvme")

    def resolved(self, chosen: Mapping[str, str]) -> Activations:
        """The same with these choices, by unit, and "keep" for what else was left to the planner."""
        decided = tuple((units, choice) for units, choice in self.rules if choice != "auto")
        own = tuple((glob.escape(unit), choice) for unit, choice in chosen.items() if decided or choice != "keep")
        return Activations((*own, *decided))

    def __str__(self) -> str:
        by_choice: dict[str, list[str]] = {}
        for units, choice in self.rules:
            by_choice.setdefault(choice, []).append(units)
        texts = []
        for choice, names in by_choice.items():
            few = ", ".join(names) if len(names) < 4 else f"{len(names)} units from {names[0]} to {names[-1]}"
            texts.append(f"{choice} in {few}")
        return "; ".join(texts) or "keep"


@dataclass(frozen=True, slots=True)
class PlanText:
    """A file of plans as it was when the options were read, so that equal options are equal plans."""

    path: Path
    text: str


@dataclass(frozen=True, slots=True)
class Options:
    """A user's options, checked and complete. Hashable; docs/options.md says what each means and why."""

    memory: int
    nvme: tuple[Path, ...]
    place: Place
    activations: Activations
    prefetch: int | Literal["auto"]
    compute: str
    optimizer: str
    late: bool
    master: str | None
    tile: tuple[tuple[str, int], ...] | None  # None: where nothing fits without
    machine: str | Path | None
    dump: Path | None
    plan: PlanText | None = None
    nvme_is_ours: bool = False  # nobody named a path: `nvme` is zinf's own cache folder, which it may create

    def nvme_folders(self) -> tuple[Path, ...]:
        """`nvme`, with zinf's own cache folder created if it is missing; a folder that a user named never is.

        Raises OptionError when it cannot be created.
        """
        if self.nvme_is_ours:
            for path in self.nvme:
                try:
                    path.mkdir(mode=0o700, parents=True, exist_ok=True)
                except OSError as error:
                    raise OptionError(
                        f'option "nvme" was not given and its default {path} cannot be created ({error.strerror}); '
                        f'name a folder on a local disk: options={{"nvme": "/path"}} or ZINF_NVME=/path'
                    ) from error
        return self.nvme


@dataclass(frozen=True, slots=True)
class _Surroundings:
    environ: Mapping[str, str]
    free_memory: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table: what the user may write, what holds if nothing is written, and why it can be set at all."""

    name: str
    accepts: str
    default: str
    why: str
    read: Callable[[str, object], object]
    otherwise: Callable[[_Surroundings], object]


def parse_options(
    raw: Mapping[str, object] | None,
    *,
    environ: Mapping[str, str],
    free_memory: Callable[[], int] = free_memory,
) -> Options:
    """Check what the user wrote and fill in the rest.

    `free_memory` returns the bytes free in the compute tier and is called only when `memory` is not given. The `dump`
    folder is created. Raises OptionError, naming the option, the value and what is allowed.
    """
    if raw is None:
        raw = {}
    if not isinstance(raw, Mapping):
        raise OptionError(f'options are a dict such as {{"memory": "4GiB"}}, not {raw!r}')
    for name in raw:
        if name not in _BY_NAME:
            raise OptionError(f"zinf has no option {name!r}{did_you_mean(name, _BY_NAME)}; its options are {_names()}")
    if raw.get("plan") is not None and (both := [f'"{name}"' for name in PLANNED if name in raw]):
        raise OptionError(
            f'options "plan" and {", ".join(both)} contradict each other, as a plan has decided that: leave out '
            f'{" and ".join(both)}, or leave out "plan" to have it decided anew'
        )
    surroundings = _Surroundings(environ, free_memory)
    values = {
        name: option.read(f'option "{name}"', raw[name]) if name in raw else option.otherwise(surroundings)
        for name, option in _BY_NAME.items()
    }
    return Options(**values, nvme_is_ours="nvme" not in raw and not environ.get("ZINF_NVME"))  # type: ignore[arg-type]


def options_table() -> str:
    """The table as Markdown, for docs/options.md."""
    lines = ["| option | accepts | default | why |", "|---|---|---|---|"]
    lines += [f"| `{option.name}` | {option.accepts} | {option.default} | {option.why} |" for option in OPTIONS]
    return "\n".join(lines) + "\n"


def _refuse(where: str, value: object, allowed: str, hint: str = "") -> NoReturn:
    raise OptionError(f"{where} cannot be {value!r}{hint}; it takes {allowed}")


def _one_of(choices: Iterable[str]) -> Callable[[str, object], str]:
    allowed = tuple(choices)

    def read(where: str, value: object) -> str:
        if not isinstance(value, str) or value not in allowed:
            _refuse(where, value, " or ".join(f'"{choice}"' for choice in allowed), did_you_mean(value, allowed))
        return value

    return read


def _one_of_or_none(choices: Iterable[str]) -> Callable[[str, object], str | None]:
    read = _one_of((*choices, "None"))
    return lambda where, value: None if value is None else read(where, value)


def _bytes(where: str, value: object, least: int = 1, also: str = "") -> int:
    allowed = f'{also}a whole number of bytes from {least} on, or a string such as "1.25GiB" ({", ".join(SIZES.sizes)})'
    size: int | None = None
    if isinstance(value, str):
        exact = parse_quantity(value, SIZES)
        if exact is None:
            right = meant(value, SIZES)
            _refuse(where, value, allowed, f' (did you mean "{right}"?)' if right else "")
        size = int(exact)  # rounded down: never above what was said
    elif not isinstance(value, bool):
        try:
            size = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            size = None
    if size is None or size < least:
        _refuse(where, value, allowed)
    return size


def _bytes_or_auto(where: str, value: object) -> int | str:
    return "auto" if isinstance(value, str) and value == "auto" else _bytes(where, value, least=0, also='"auto", ')


def _free_now(around: _Surroundings) -> int:
    try:
        free = around.free_memory()
    except OSError as error:
        raise OptionError(
            f'option "memory" was not given and what is free cannot be told ({error}); '
            'say it: options={"memory": "4GiB"}'
        ) from error
    if free < 1:
        raise OptionError('option "memory" was not given and nothing is free; say it: options={"memory": "4GiB"}')
    return free


def _path(where: str, value: object) -> Path:
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        _refuse(where, value, "a path (str or Path)")
    return Path(os.path.abspath(os.path.expanduser(text)))


def _paths(where: str, value: object) -> tuple[Path, ...]:
    if not isinstance(value, list | tuple):
        return (_path(where, value),)
    paths = tuple(_path(f"{where}, item {i},", item) for i, item in enumerate(value))
    if not paths or len(set(paths)) < len(paths):
        _refuse(where, value, "one path or several different ones, each on a disk of its own")
    return paths


def _default_paths(around: _Surroundings) -> tuple[Path, ...]:
    environ = around.environ
    named = environ.get("ZINF_NVME")
    if named:
        return _paths("environment variable ZINF_NVME", named.split(os.pathsep))
    cache = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):  # the XDG base directory specification has relative paths ignored
        cache = str(Path(environ.get("HOME") or Path.home()) / ".cache")
    return (Path(cache) / "zinf",)


def _machine(where: str, value: object) -> str | Path | None:
    """A word is a name; what has a slash or an ending, or is a Path, is a path."""
    if value is None:
        return None
    if isinstance(value, str) and value and os.sep not in value and not value.endswith(".toml"):
        return _one_of(MACHINES)(f"{where}, if it is no path to a .toml file,", value)
    return _path(where, value)


def _place(where: str, value: object) -> Place:
    kinds = tuple(field.name for field in fields(Place))
    if not isinstance(value, Mapping):
        _refuse(where, value, f'a dict such as {{"params": "nvme"}} with keys from {", ".join(kinds)}')
    for kind in value:
        if kind not in kinds:
            own = ' (they are an option of their own: {"activations": "nvme"})' if kind == "activations" else ""
            _refuse(f"a key of {where}", kind, ", ".join(f'"{k}"' for k in kinds), own or did_you_mean(kind, kinds))
    return Place(**{kind: _one_of(HOMES)(f'{where}["{kind}"]', home) for kind, home in value.items()})


def _activations(where: str, value: object) -> Activations:
    read = _one_of(ACTIVATIONS)
    if not isinstance(value, Mapping):
        return Activations((("*", choice),) if (choice := read(where, value)) != "keep" else ())
    for units in value:
        if not isinstance(units, str) or not units:
            _refuse(f"a key of {where}", units, 'a unit or a glob over units, such as "layers.*"')
    return Activations(tuple((units, read(f'{where}["{units}"]', choice)) for units, choice in value.items()))


def _tile(where: str, value: object) -> tuple[tuple[str, int], ...] | None:
    if value == "auto":
        return None
    if not isinstance(value, Mapping):
        _refuse(where, value, '"auto" or a dict such as {"layers.*.mlp": 4} from names or globs to whole numbers')
    for names, factor in value.items():
        if not isinstance(names, str) or not names:
            _refuse(f"a key of {where}", names, 'the name of a parameter or module, or a glob, such as "layers.*.mlp"')
        if isinstance(factor, bool) or not isinstance(factor, int) or factor < 1:
            _refuse(f'{where}["{names}"]', factor, "a whole number from 1 on")
    return tuple(value.items())


def _folder(where: str, value: object) -> Path | None:
    if value is None:
        return None
    path = _path(where, value)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"{where}: the folder {path} cannot be made ({error.strerror}); name another") from error
    return path


def _plan(where: str, value: object) -> PlanText | None:
    if value is None:
        return None
    path = _path(where, value)
    try:
        return PlanText(path, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise OptionError(f"{where}: {path} cannot be read ({why}); name a plan.json that zinf has written") from error


def _true_or_false(where: str, value: object) -> bool:
    if not isinstance(value, bool):
        _refuse(where, value, "True or False")
    return value


def _always(value: object) -> Callable[[_Surroundings], object]:
    return lambda around: value


OPTIONS: tuple[Option, ...] = (
    Option(
        "memory",
        'bytes: an int, or a string such as `"1.25GiB"` or `"900MB"`',
        "what the machine, or the memory cgroup, has free at the first compile",
        "The one thing a user must say when memory is short: all that a step holds in the compute tier stays below it.",
        _bytes,
        _free_now,
    ),
    Option(
        "nvme",
        "a path, or a list of paths to stripe over",
        "`ZINF_NVME` (paths joined as in `PATH`), else `$XDG_CACHE_HOME/zinf` or `~/.cache/zinf`",
        "States that do not fit rest here. Only the default folder is ever created; a mistyped path must not fill the "
        "wrong disk.",
        _paths,
        _default_paths,
    ),
    Option(
        "place",
        'a dict from `"params"`, `"grads"`, `"optimizer"` to `"host"`, `"nvme"` or `"auto"`',
        '`"auto"` for each',
        "Overrides the planner, which places unit by unit, for one kind of state: to compare placements, or to keep a "
        "disk free. If your loop looks at gradients (`clip_grad_norm_`, the Trainer's `max_grad_norm`), say "
        '`{"grads": "host"}`: each look at one on nvme pages it in.',
        _place,
        _always(Place()),
    ),
    Option(
        "activations",
        ", ".join(f'`"{choice}"`' for choice in ACTIVATIONS)
        + ', or a dict from units (globs, the first that matches counts) to these, such as `{"layers.*": "nvme"}`',
        '`"auto"`: kept where nothing has to move, else what makes the shortest step',
        "What backward needs of a forward stays in memory, goes to nvme and comes back, or is computed again from "
        "the input of each unit, which `recompute+nvme` moves, too. activations.md says when to use which.",
        _activations,
        _always(Activations((("*", "auto"),))),
    ),
    Option(
        "prefetch",
        'bytes as for `memory`, 0 for none, or `"auto"`',
        '`"auto"`: what the limit leaves',
        "How much may be read ahead of its use. Less saves memory, more hides slow reads.",
        _bytes_or_auto,
        _always("auto"),
    ),
    Option(
        "compute",
        '`"inductor"` or `"eager"`',
        '`"inductor"`',
        "`eager` runs each region op by op: bitwise the `aot_eager` backend, nothing to compile, slower.",
        _one_of(COMPUTE),
        _always("inductor"),
    ),
    Option(
        "optimizer",
        "an elementwise class of `torch.optim` by name: " + ", ".join(f'`"{name}"`' for name in OPTIMIZER_STATES),
        '`"AdamW"`',
        "The first plan is made before any optimizer is seen; the right name saves making it again at the first step.",
        _one_of(OPTIMIZER_STATES),
        _always("AdamW"),
    ),
    Option(
        "late",
        "`True` or `False`",
        "`True`",
        "An update goes on beside the next forward, in the order in which that needs the weights. `False` ends it in "
        "`step()`: for timing a step, or to have its errors there.",
        _true_or_false,
        _always(True),
    ),
    Option(
        "master",
        '`"float32"` or `None`',
        "`None`",
        "Updates 16-bit parameters in float32: the optimizer works on a float32 copy, which rests with its states, and "
        "the parameter is that copy, rounded.",
        _one_of_or_none(("float32",)),
        _always(None),
    ),
    Option(
        "tile",
        '`"auto"`, or a dict from names of modules or parameters (globs, the first that matches counts) to whole '
        'numbers, such as `{"layers.*.mlp": 4}`; `{}` for no tiles',
        '`"auto"`: where nothing fits without',
        "Computes with large weights tile by tile, of which only one is in memory: for a weight, or a piece of memory "
        "large enough for it, that does not fit; and for the logits of a language model ([more](tiling.md)).",
        _tile,
        _always(None),
    ),
    Option(
        "machine",
        "a path to a `.toml` file, or the name of a shipped description: " + ", ".join(f'`"{m}"`' for m in MACHINES),
        "what `zinf calibrate` has measured, else `laptop` with the memory and disk of this machine",
        "What the hardware can do: how fast it computes and moves bytes. A description lets a plan be looked at for a "
        "machine that is not there.",
        _machine,
        _always(None),
    ),
    Option(
        "dump",
        "a folder, created if missing",
        "none",
        "Writes the plans, and the schedules as `.zsched` text, there: to read, to diff and to check in.",
        _folder,
        _always(None),
    ),
    Option(
        "plan",
        "a `plan.json` that the option `dump`, `zinf dump --output` or `save_plan` has written",
        "none",
        "Takes placement, prefetch, activations and tiles as the file says, checked against the limit, where zinf "
        "would decide: to keep a plan as it is, or to change it by hand ([more](plans.md)).",
        _plan,
        _always(None),
    ),
)

_BY_NAME: Mapping[str, Option] = MappingProxyType({option.name: option for option in OPTIONS})


def _names() -> str:
    return ", ".join(f'"{name}"' for name in _BY_NAME)
