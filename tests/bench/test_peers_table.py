"""bench.peers: what its table, its answers and its page say, from rows with round figures."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest

from bench.peers import files
from bench.peers.__main__ import PAGE
from bench.peers.rounds import Row, Turn
from bench.peers.systems import MIB, SHARES
from bench.peers.table import END, HEADINGS, SAME, Answer, answers, begin, behind, markdown, missed, put


def row(
    name: str,
    seconds: float,
    share: Fraction | None = None,
    *,
    loss: float = 2.0,
    error: str | None = None,
    peak: int = 512 * MIB,
) -> Row:
    turn = Turn(seconds, 3e9, 1e9, peak)
    return Row(name, share, share and 256 * MIB, [loss] * 3, [turn] * 3, [1.0] * 3, error)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, {}),
        ({"whole": 2.1}, {"step of deepspeed, over zinf at 1": 5 / 2.1}),
        ({"quarter": 3.6}, {"step of deepspeed, over zinf at 1/4": 5 / 3.6}),
        ({"loss": 2.01}, {"losses of zinf at 1/4, relative difference from eager's": 0.005}),
        ({"error": "E"}, {"step of deepspeed, over zinf at 1/4": 0.0}),
    ],
)
def test_the_medians_decide(change: Mapping[str, Any], wrong: Mapping[str, float]) -> None:
    given = {"whole": 2.0, "quarter": 3.5, "loss": 2.0, "error": None, **change}
    rows = [
        row("eager", 1.0),
        row("deepspeed", 5.0),
        row("zinf at 1", given["whole"], SHARES[0]),
        row("zinf at 1/2", 9.0, SHARES[1]),
        row("zinf at 1/4", given["quarter"], SHARES[2], loss=given["loss"], error=given["error"]),
    ]
    found = answers(rows, "deepspeed", "fp32")
    bounds = [(answer.at_least, answer.at_most) for answer in found]
    assert bounds[:3] == [(2.5, None), (None, None), (1.4, None)] and set(bounds[3:]) == {(None, SAME["fp32"])}
    missed = {
        answer.question: answer.measured
        for answer in found
        if answer.measured < (answer.at_least or 0) or answer.measured > (answer.at_most or 99)
    }
    assert missed == pytest.approx(wrong)


def test_deepspeed_counts_with_the_faster_of_its_ways_beside_the_same_step_of_eager() -> None:
    other = row("deepspeed-pipelined", 9.0)
    other.beside = [3.0] * 3
    rows = [row("eager", 1.0), row("deepspeed", 5.0), row("zinf at 1", 2.0, SHARES[0]), other]
    first = answers(rows, "deepspeed", "fp32")[0]
    assert (first.question, first.measured) == ("step of deepspeed-pipelined, over zinf at 1", 1.5)
    other.error = "E"
    assert answers(rows, "deepspeed", "fp32")[0].measured == 2.5


def test_without_deepspeed_the_ratios_are_told_and_nothing_is_asked_of_them() -> None:
    rows = [row("eager", 1.0), row("fsdp2", 2.0), row("zinf at 1", 4.0, SHARES[0])]
    assert [(a.measured, a.at_least) for a in answers(rows, "fsdp2", "fp32")][:1] == [(0.5, None)]


def test_where_zinf_is_not_the_best_a_sentence_says_so() -> None:
    rows = [
        row("eager", 1.0, peak=1024 * MIB),
        row("fsdp2", 9.0, peak=256 * MIB),
        row("broken", 0.1, error="E", peak=1),
        row("zinf at 1", 0.9, SHARES[0], peak=255 * MIB),
        row("zinf at 1/2", 2.0, SHARES[1]),
        row("zinf at 1/4", 2.0, SHARES[2], error="E"),
    ]
    assert behind(rows) == [
        "zinf at 1/2 is slower than eager (by 2.00, which holds 2.00 times the memory).",
        "zinf at 1/2 holds more memory than fsdp2 (by 2.00).",
        "zinf at 1/4 made no step.",
    ]


def test_an_aim_that_is_not_reached_is_told() -> None:
    found = [Answer("a", 2.49, at_least=2.5), Answer("b", 2.5, at_least=2.5), Answer("c", 9.0, at_most=1.0)]
    assert missed(found) == ["Not reached: a, is 2.49; 2.5 is the aim."]
    assert missed([Answer("a", float("nan"), at_least=2.5)])


def test_the_page_gets_the_table_between_its_lines_and_keeps_the_rest() -> None:
    rows = [row("eager", 1.0), row("zinf at 1/4 of x", 2.0, SHARES[2]), row("x", 4.0), row("y", 1.0, error="a | b")]
    where = {"cpu": "A", "cores": 2, "memory_bytes": 2**34, "date": "2026-01-31"}
    text = markdown(rows, "x", {**where, "spec": "--rounds 3", "commit": "c" * 40, "torch": "t"}, "a title")
    assert text.splitlines()[4:] == [
        "| eager |  | 1.00 | 1.00 | 0.25 | 0.50 | 3.00 | 1.00 |  |",
        "| zinf at 1/4 of x | 0.25 | 2.00 | 2.00 | 0.50 | 0.50 | 3.00 | 1.00 | 0e+00 |",
        "| x |  | 4.00 | 4.00 | 1.00 | 0.50 | 3.00 | 1.00 | 0e+00 |",
        "| y |  |  |  |  |  |  |  | a \\| b |",
        "",
        "zinf at 1/4 of x is slower than eager (by 2.00, which holds 1.00 times the memory).",
    ]
    assert all(line.count(" | ") == len(HEADINGS) - 1 for line in text.splitlines()[2:7])
    start = begin("m", "fp32")
    page = f"before\n{start}\nold\n{END}\nafter\n"
    assert put(page, start, text) == f"before\n{start}\n{text}{END}\nafter\n"
    with pytest.raises(ValueError, match="no place for this table"):
        put(page, begin("m", "bf16"), text)


def test_the_page_has_a_place_for_each_model_and_precision() -> None:
    text = PAGE.read_text()
    for model in files.MODELS:
        for precision in SAME:
            assert "\nTHE TABLE\n" in put(text, begin(model, precision), "THE TABLE\n")
    for precision in SAME:
        assert "\nTHE TABLE\n" in put(text, begin("smollm2", precision, 500), "THE TABLE\n")
