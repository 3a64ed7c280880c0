"""Has zinf become worse for a model of the zoo? Figures of its schedules against those that were right before.

    python -m bench.zoo [MODEL ...] [--update]

Every model is described at every limit, without a byte of it: bytes on each lane, the most that is held, and how long
computing would wait on the machines that come with zinf. Status 0: nothing is worse; 1: something is, and a line says
by which op; 2: it could not be told. `--update` makes what is now the base.
"""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.text import Text

from bench.zoo.base import HERE, read_base
from bench.zoo.described import described
from bench.zoo.gate import judged, updated
from bench.zoo.models import ZOO
from zcompiler.errors import BadInput


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [kind.name for kind in ZOO]
    arguments.add_argument("models", nargs="*", metavar="MODEL", help=f"only these of {', '.join(names)}")
    arguments.add_argument("--update", action="store_true", help="make what is now the base")
    given = arguments.parse_args()
    if unknown := sorted(set(given.models) - set(names)):
        arguments.error(f"no model {unknown[0]}; there are {', '.join(names)}")
    if given.models and given.update:
        arguments.error("--update takes the whole zoo")
    chosen = [kind for kind in ZOO if not given.models or kind.name in given.models]
    if given.update:
        return 0 if updated(described(chosen), HERE) else 1
    try:
        base = read_base([(kind.name, limit.name) for kind in chosen for limit in kind.limits])
    except BadInput as error:
        Console(stderr=True, soft_wrap=True).print(Text(str(error), "red"))
        return 2
    return 0 if judged(described(chosen), base) else 1


if __name__ == "__main__":
    raise SystemExit(main())
