"""Run the benchmarks, one after the other, and write what they found into docs/benchmarks.md.

    python -m bench.collect [--only NAME ...] [--nvme /path/on/a/disk] [--results FOLDER] [--page-only]

Each takes minutes, during which the machine should do nothing else. The lines of each are kept in the folder, and the
page is written anew after each. What is there already, of the same code, is not run again, so a run that was cut goes
on where it stopped; with --only these run whatever is there, and nothing else does. One that fails does not stop the
others: its error is its row. Status 1 if something does not hold or could not be run, else 0.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from bench.collect.page import write_page
from bench.collect.runs import RUNS, is_done, read_lines, run, spec
from bench.collect.table import rows
from bench.record import entry
from bench.turns import ROOT

RESULTS = ROOT / "build" / "bench"
PAGE = ROOT / "docs" / "benchmarks.md"


def main() -> bool:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", nargs="+", metavar="NAME", choices=tuple(RUNS), help=f"of {', '.join(RUNS)}")
    arguments.add_argument("--nvme", type=Path, help="a directory on the disk to use (default: zinf's own)")
    arguments.add_argument("--results", type=Path, default=RESULTS, help="the folder of the lines")
    arguments.add_argument("--page-only", action="store_true", help="run nothing: write the page from what is there")
    given = arguments.parse_args()
    collect(() if given.page_only else given.only or RUNS, given.results, PAGE, given.nvme, again=bool(given.only))
    return all(row.holds for row in rows(read_lines(given.results)))


def collect(names: Iterable[str], results: Path, page: Path, nvme: Path | None, *, again: bool) -> None:
    """Run those that have no lines of this code yet (`again`: all of them), and write the page, first and after each.
    BadInput where the page has no place for them."""
    write_page(read_lines(results), page)  # what keeps it from being written shows now, and not in an hour
    for name in names:
        if not again and is_done(name, results):
            print(f"{spec(name)}: kept", flush=True)
            continue
        run(name, results, nvme)
        write_page(read_lines(results), page)


if __name__ == "__main__":
    entry(main)
