"""Every `tile-operators/<sentence>.ops` is a specification: the graph in its first half becomes the regions below."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.passes.graphs import Graph

GOLDENS = sorted((Path(__file__).parent / "tile-operators").glob("*.ops"))


@pytest.mark.parametrize("path", GOLDENS, ids=lambda p: p.stem)
def test_golden(path: Path) -> None:
    head, _, rest = path.read_text().partition("\n")
    graph, _, expected = rest.partition("# ----\n")
    factors = {name: int(factor) for name, _, factor in (w.partition("=") for w in head.split()[2:])}
    assert Graph(graph).tiled(factors) == expected
