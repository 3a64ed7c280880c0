"""What the command line says of zinf's options, as `torch.compile` would get them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from zcompiler.options import OptionError, parse_options


def zinf_options(
    given: Mapping[str, Any], place: Sequence[str], activations: Sequence[str], tile: Sequence[str]
) -> dict[str, Any]:
    """`given` without what is None, and the options that are dicts, from texts KEY=VALUE (or, for activations, one
    VALUE for all units).

    On a machine that is named and not here, its memory is the limit if none is given. OptionError for a text that
    cannot be read; what it says is checked later, with all the rest.
    """
    options = {name: _number_or_text(value) for name, value in given.items() if value is not None}
    if place:
        options["place"] = dict(_pair("--place", text, "params=nvme") for text in place)
    if len(activations) == 1 and "=" not in activations[0]:
        options["activations"] = activations[0]
    elif activations:
        options["activations"] = dict(_pair("--activations", text, "'layers.*=nvme'") for text in activations)
    if tile:
        pairs = (_pair("--tile", text, "'layers.*.mlp=4'") for text in tile)
        options["tile"] = {name: int(value) if value.isdecimal() else value for name, value in pairs}
    if "machine" in options and "memory" not in options:
        options["memory"] = _memory_of(options["machine"])
    return options


def _number_or_text(value: Any) -> Any:
    """Bytes without a unit are a number, as they would be in Python."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def _pair(option: str, text: str, example: str) -> tuple[str, str]:
    key, equals, value = text.rpartition("=")
    if not key or not equals or not value:
        raise OptionError(f"{option} {text}: write it as in {option} {example}")
    return key, value


def _memory_of(machine: str) -> int:
    from zcompiler.machine.choose import choose_machine
    from zcompiler.machine.parts import cpu_only

    options = parse_options({"machine": machine, "memory": 1}, environ=os.environ)
    chosen, compute = choose_machine(options.machine, os.environ, options.nvme[0]), cpu_only(1).compute
    capacity = next((t.capacity for t in chosen.machine.tiers if t.name == compute), None)
    if capacity is None:
        raise OptionError(f"machine {chosen.machine.name} does not say how much its {compute} holds: give --memory")
    return capacity
