"""A table of a machine's TOML file, read key by key; whatever is wrong with it is one error that says all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from zcompiler.errors import ZinfError, did_you_mean
from zcompiler.quantities import SIZES, Units, meant, parse_quantity

UNLIMITED = "unlimited"


class MachineError(ZinfError, ValueError):
    """A description of a machine that cannot be read: the file, the key, the value and what it takes."""


class Table:
    """A TOML table at `path` in the file that errors call `where`."""

    def __init__(self, where: str, path: str, raw: Mapping[str, Any]) -> None:
        self.where, self.path, self.raw = where, path, raw

    def table(self, key: str) -> Table:
        value = self.get(key, "a table")
        if not isinstance(value, dict):
            self.refuse(key, f"a table, [{self._full(key)}]")
        return Table(self.where, self._full(key), value)

    def get(self, key: str, sample: str) -> Any:
        if key not in self.raw:
            raise MachineError(f'{self.where}: the key "{self._full(key)}" is missing: add it, {sample}')
        return self.raw[key]

    def only(self, keys: Iterable[str], required: Sequence[str] = ()) -> None:
        for key in self.raw:
            if key not in keys:
                place = f"the table {self.path}" if self.path else "it"
                raise MachineError(
                    f'{self.where} has an unknown key "{self._full(key)}"{did_you_mean(key, keys)}: {place} may have '
                    f"{', '.join(keys)}"
                )
        for key in required:
            self.get(key, f"as docs/machine.md shows in [{self.path}]")

    def text(self, key: str) -> str:
        value = self.get(key, 'such as name = "my-machine"')
        # It is printed as a part of one line.
        if not isinstance(value, str) or not value or not value.isprintable():
            self.refuse(key, "a name of one line in quotes")
        return value

    def measured(self, key: str) -> tuple[str, ...]:
        value = self.get(key, "such as measured = []")
        if not isinstance(value, list) or not all(isinstance(item, str) and item.isprintable() for item in value):
            self.refuse(key, 'the names of the tables that were measured, such as ["lanes.nvme_read"]')
        return tuple(value)

    def capacity(self, key: str) -> int | None:
        return None if self.raw[key] == UNLIMITED else int(self.quantity(key, SIZES))

    def quantity(self, key: str, units: Units) -> float:
        """A number above zero in base units."""
        value = self.get(key, f'such as {key} = "{units.sample}"')
        number = parse_quantity(value, units) if isinstance(value, str) else None
        try:
            read = 0 if number is None else int(number) if units is SIZES else float(number)
        except OverflowError:
            read = 0
        if not read:
            right = meant(value, units) if isinstance(value, str) and number is None else None
            hint = f' (did you mean "{right}"?)' if right else ""
            known = ", ".join(units.sizes)
            self.refuse(key, f'{units.what} above zero such as "{units.sample}", in one of {known}', hint)
        return read

    def refuse(self, key: str, allowed: str, hint: str = "") -> NoReturn:
        raise MachineError(f'{self.where}: "{self._full(key)}" cannot be {self.raw[key]!r}{hint}; it takes {allowed}')

    def fail(self, what: str) -> NoReturn:
        raise MachineError(f"{self.where}: the table {self.path} {what}")

    def _full(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key
