"""The base on disk: `baseline.json` with the figures, to be read in a diff, and the schedules that they come from.

Schedules name the op that is behind a figure. They are long and repeat themselves, so each case's are compressed:
`schedules/llama-8b-middle.json.xz` is a base of `zinf check`.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.zoo.described import Case
from zcompiler.compare.base import format_base, parse_base
from zcompiler.compare.metrics import Side
from zcompiler.errors import BadInput

HERE = Path(__file__).parent
FIGURES, SCHEDULES, SUFFIX = "baseline.json", "schedules", ".json.xz"
MADE_WITH = ("torch", "transformers")


@dataclass(frozen=True, slots=True)
class Base:
    """What was written: the schedules of each case, and the versions of what the graphs were captured with."""

    sides: Mapping[Case, Side]
    made_with: Mapping[str, str]


def versions() -> dict[str, str]:
    """Of what decides how a model is captured; without what is behind a `+`."""
    return {name: version(name).partition("+")[0] for name in MADE_WITH}


def write_base(sides: Mapping[Case, Side], folder: Path = HERE) -> list[str]:
    """Write what differs from what is there, and remove what is in no case; the names of the cases that changed."""
    (folder / SCHEDULES).mkdir(parents=True, exist_ok=True)
    texts = {_stem(case): format_base(side) for case, side in sides.items()}
    files = {stem: folder / SCHEDULES / f"{stem}{SUFFIX}" for stem in texts}
    for file in (folder / SCHEDULES).glob(f"*{SUFFIX}"):
        if file not in files.values():
            file.unlink()
    # By the text: another release of the compressor may give other bytes.
    changed = [stem for stem, file in files.items() if not file.exists() or _text(file) != texts[stem]]
    for stem in changed:
        files[stem].write_bytes(lzma.compress(texts[stem].encode(), preset=9))
    base = {"made with": versions(), "cases": {stem: _figures(text) for stem, text in texts.items()}}
    (folder / FIGURES).write_text(json.dumps(base, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return changed


def read_base(cases: list[Case], folder: Path = HERE) -> Base:
    """What `write_base` wrote, for these cases. BadInput where one is missing or figures and schedules disagree."""
    file = folder / FIGURES
    if not file.exists():
        raise BadInput(f"{file}: no such base; make it: python -m bench.zoo --update")
    base = json.loads(file.read_text(encoding="utf-8"))
    sides = {}
    for case in cases:
        stem = _stem(case)
        path = folder / SCHEDULES / f"{stem}{SUFFIX}"
        if stem not in base["cases"] or not path.exists():
            raise BadInput(f"{folder}: no base for {stem}; make it: python -m bench.zoo --update")
        text = _text(path)
        if _figures(text) != base["cases"][stem]:
            raise BadInput(f"{file}: {stem} is not what {path.name} says (a merge?): python -m bench.zoo --update")
        sides[case] = parse_base(text, str(path))
    return Base(sides, base["made with"])


def _stem(case: Case) -> str:
    return "-".join(case)


def _text(file: Path) -> str:
    return lzma.decompress(file.read_bytes()).decode()


def _figures(text: str) -> dict[str, Any]:
    return json.loads(text)["metrics"]
