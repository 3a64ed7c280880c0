"""Plans as a file: what comes back, and one clear line for what is no such file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.plan.steps import KIB, layers, planned
from zcompiler.options import Activations, OptionError, parse_options
from zcompiler.plan.file import MadeFor, format_plans, parse_plans
from zcompiler.plan.plan import Plan

MADE = MadeFor("1500KiB", "laptop (shipped with zinf)", "eager", "AdamW", True, None)


def plan() -> Plan:
    return planned(layers([128 * KIB] * 4, 1500 * KIB), 1500 * KIB)


def written(**changed: Any) -> dict[str, Any]:
    """The document of one plan, with parts of its graph replaced."""
    document = json.loads(format_plans({"graph0": plan()}, MADE))
    document["graphs"]["graph0"].update(changed)
    return document


def test_what_is_written_comes_back() -> None:
    made = plan()
    assert len({str(homes) for homes in made.placement.values()}) > 1, "not all units rest alike"
    text = format_plans({"graph0": replace(made, tile=(("l*", 2), ("a", 3)))}, MADE)
    found = parse_plans(text, "plan.json")
    given = found.graphs["graph0"]
    assert (found.made_for, given.tile) == (MADE, (("l*", 2), ("a", 3)))
    assert (given.placement, given.prefetch, given.reasons) == (made.placement, made.prefetch, made.reasons)
    assert given.activations == Activations() and given.form == "plain" and given.trains and given.is_repeated_by(made)


def test_the_text_is_sorted_and_says_homes_in_one_line() -> None:
    text = format_plans({"graph0": plan()}, MADE)
    assert text == json.dumps(json.loads(text), indent=1, sort_keys=True) + "\n"
    assert '    "l0": "params=' in text and " optimizer=nvme" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON (Expecting value: line 1 column 1 (char 0))"),
        ("[]", 'has no "zinf-plan"'),
        (json.dumps({"zinf-plan": 2}), "is a plan of version 2 and this zinf reads version 1: make it anew by"),
        (json.dumps({"zinf-plan": 1}), '"made_for" is missing and wants dict'),
        (json.dumps(written(prefetch=4)), 'p.json, graphs, graph0: "prefetch" is 4 and wants str'),
        (json.dumps(written(prefetch="1k")), "'1k' is not a size"),
        (json.dumps(written(form="row")), "its form is 'row' and none of plain, uncut, rows, low"),
        (json.dumps(written(activations=[["*", "auto"]])), "activations cannot be 'auto'"),
        (json.dumps(written(activations=["keep"])), "\"activations\" has 'keep', which is no pair"),
        (json.dumps(written(placement={"l0": "params=host"})), "\"l0\" is 'params=host' and wants params=TIER grads="),
        (json.dumps(written(tile=[["a", 0]])), "a count of tiles is 0"),
    ],
)
def test_what_is_no_such_file_is_said_in_one_line(text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_plans(text, "p.json")
    assert str(caught.value).startswith("p.json") and message in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r'option "plan": .*gone.json cannot be read \(No such file or directory\)'):
        parse_options({"memory": 1, "plan": tmp_path / "gone.json"}, environ={"HOME": "/"})


def test_options_that_a_plan_has_decided_are_refused_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(format_plans({"graph0": plan()}, MADE))
    own = {"memory": 1, "plan": file}
    assert parse_options(own, environ={"HOME": "/"}) == parse_options(own, environ={"HOME": "/"})
    with pytest.raises(OptionError, match='leave out "place" and "prefetch", or leave out "plan"'):
        parse_options({**own, "prefetch": 0, "place": {}}, environ={"HOME": "/"})
