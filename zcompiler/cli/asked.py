"""What a command line says of a model and of how zinf is to plan it: one list of options for all commands that take a
target."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from zcompiler.options import parse_options

if TYPE_CHECKING:
    from zcompiler.cli.dump.target import Wanted

TARGET = (
    "A Python file with model() and inputs(), MODULE:FUNCTION, or a configuration of transformers: a JSON file, a "
    "folder, a model type such as llama, or a class name."
)


class Dtype(StrEnum):
    """Of a configuration's weights."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


@dataclass(frozen=True)
class Asked:
    """The options, as typer reads them. Those from `memory` on are zinf's own."""

    settings: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE of the configuration, such as hidden_size=4096.")
    ] = None
    batch: Annotated[int, typer.Option(min=1, help="Sequences a step, for a configuration.")] = 1
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of each sequence, for a configuration.")] = 512
    dtype: Annotated[Dtype | None, typer.Option(help="Of a configuration's weights; what it says, else float32.")] = (
        None
    )
    autocast: Annotated[Dtype | None, typer.Option(help="The model runs under torch.autocast.")] = None
    train: Annotated[bool, typer.Option("--train/--infer", help="A training step, or forward alone.")] = True
    memory: Annotated[
        str | None, typer.Option(help="The limit, such as 16GiB; else what --machine has, else what is free here.")
    ] = None
    machine: Annotated[str | None, typer.Option(help="As the option machine: a shipped name or a .toml file.")] = None
    place: Annotated[list[str] | None, typer.Option(help="KIND=HOME, such as params=nvme; again for others.")] = None
    activations: Annotated[
        list[str] | None, typer.Option(help="keep, nvme, recompute or recompute+nvme; GLOB=... for some units.")
    ] = None
    tile: Annotated[list[str] | None, typer.Option(help="GLOB=COUNT: matmuls in tiles.")] = None
    prefetch: Annotated[str | None, typer.Option(help="Bytes that may be read ahead.")] = None
    compute: Annotated[str | None, typer.Option(help="inductor or eager.")] = None
    optimizer: Annotated[str | None, typer.Option(help="A class of torch.optim.")] = None
    master: Annotated[str | None, typer.Option(help="float32: 16-bit parameters are updated in it.")] = None
    late: Annotated[bool, typer.Option("--late/--no-late", help="Updates beside the next forward.")] = True
    given: Annotated[str | None, typer.Option(help="A plan.json to take plans from, as option plan does.")] = None

    def wanted(self, target: str) -> Wanted:
        from zcompiler.cli.dump.target import Wanted

        return Wanted(target, tuple(self.settings or ()), self.batch, self.tokens, self.dtype, self.train)

    def said(self) -> list[str]:
        """The options that were given, and not their defaults, by name."""
        return [f.name for f in fields(self) if getattr(self, f.name) != f.default]

    def arguments(self) -> list[str]:
        """Those that were given, as they are written."""
        words: list[str] = []
        for name in self.said():
            value, option = getattr(self, name), {"settings": "--set"}.get(name, f"--{name}")
            if isinstance(value, bool):
                words.append("--infer" if name == "train" else f"--no-{name}")
            else:
                for one in value if isinstance(value, list) else [value]:
                    words += [option, str(one)]
        return words

    def options(self) -> dict[str, Any]:
        """Those of zinf, checked, without importing torch. OptionError."""
        from zcompiler.cli.dump.options import zinf_options

        names = ("memory", "machine", "prefetch", "compute", "optimizer", "master", "late")
        given = {name: getattr(self, name) for name in names} | {"plan": self.given}
        options = zinf_options(given, self.place or (), self.activations or (), self.tile or ())
        parse_options(options, environ=os.environ)
        return options


def takes_target_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameter `asked` is filled from the options of `Asked`, which stand in its place."""
    hints = get_type_hints(Asked, include_extras=True)
    named = [f.name for f in fields(Asked)]
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [inspect.Parameter(f.name, keyword, default=f.default, annotation=hints[f.name]) for f in fields(Asked)]
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        parameters += own if parameter.name == "asked" else [parameter.replace(kind=keyword)]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        asked = Asked(**{name: given.pop(name) for name in named})
        command(asked=asked, **given)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run
