"""A plan that a run or a description has saved, given back: the same steps, the same files, or one clear error."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import zcompiler
from tests.describe.models import Broken, Deep, rows, tokens, wide, wide_rows
from tests.right.models import batches, built, decoder
from tests.right.twins import ALL_ON_NVME, Trace, assert_same, stock, train
from tests.training.autocasting import DATA as AUTOCAST
from tests.training.autocasting import Autocasting
from zcompiler.errors import DoesNotFit
from zcompiler.options import OptionError

LAYERS = 8
DATA = batches(decoder, 2)
UNITS = ("embedding", "layers.0", "layers.1", "layers.2", "layers.3")  # of Deep
ASKED = {"memory": "1300KiB", "activations": {"*.[1-3]": "nvme", "*.4": "recompute"}}


def run(folder: Path, disk: Path, **options: Any) -> tuple[Trace, Any]:
    """Two steps with these options and a dump."""
    own = {"compute": "eager", "nvme": str(disk), "dump": str(folder), **options}
    compiled = torch.compile(built(decoder, LAYERS), backend="zinf", options=own)
    return train(compiled, [torch.optim.AdamW], DATA), compiled


def files(folder: Path) -> dict[str, str]:
    return {str(f.relative_to(folder)): f.read_text() for f in sorted(folder.rglob("*")) if f.is_file()}


def test_a_run_with_the_plan_of_another_is_the_same_run(disk: Path) -> None:
    first, then = disk.parent / "first", disk.parent / "then"
    theirs, compiled = run(first, disk, **ASKED)
    saved = disk.parent / "saved.json"
    zcompiler.schedule(compiled).save_plan(saved)
    assert saved.read_text() == (first / "plan.json").read_text()
    plan = json.loads(saved.read_text())["graphs"]["graph0"]
    assert len(set(plan["placement"].values())) > 1 and len(plan["activations"]) > 1
    ours, compiled = run(then, disk, memory=ASKED["memory"], plan=str(saved))
    assert_same(ours, theirs)
    assert_same(ours, train(stock(built(decoder, LAYERS)), [torch.optim.AdamW], DATA))
    stats = zcompiler.stats(compiled)
    assert (stats.read["nvme"]["state"] > 0, stats.read["nvme"]["act"] > 0, stats.fallbacks) == (True, True, ())
    assert len(files(first)) > 10 and files(then) == files(first)


def test_a_described_plan_is_that_of_the_run_and_of_a_description_with_it(disk: Path) -> None:
    saved = disk.parent / "plan.json"
    options = {"memory": "2500KiB", "compute": "eager"}
    found = zcompiler.schedule(wide(), wide_rows(), options=options)
    assert len(set(found.graphs[0].plan.placement.values())) > 1
    found.save_plan(saved)
    again = zcompiler.schedule(wide(), wide_rows(), options={**options, "plan": saved})
    assert (str(again), again.plans) == (str(found), saved.read_text())
    compiled = torch.compile(wide(), backend="zinf", options={**options, "plan": saved, "nvme": str(disk)})
    compiled(*wide_rows()).sum().backward()
    assert str(zcompiler.schedule(compiled)["graph0"]) == str(found.graphs[0].final)
    assert zcompiler.stats(compiled).written["nvme"]["grad"] > 0


@pytest.mark.parametrize(
    ("form", "make", "batch", "own"),
    [
        ("rows", Deep, tokens, {"tile": {"layers.1": 2}, "place": ALL_ON_NVME}),
        ("low", Autocasting, lambda: AUTOCAST[0], {"memory": "4MiB", "place": ALL_ON_NVME}),
    ],
)
def test_each_form_of_a_graph_is_taken_as_it_was(form: str, make: Any, batch: Any, own: Any, tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    options = {"memory": "2MiB", "compute": "eager", **own}
    found = zcompiler.schedule(make(), batch(), options=options)
    assert found.graphs[0].plan.form == form
    found.save_plan(saved)
    left = {name: value for name, value in options.items() if name not in ("tile", "place")}
    again = zcompiler.schedule(make(), batch(), options={**left, "plan": saved})
    assert (str(again), again.plans) == (str(found), found.plans)


def test_a_higher_limit_takes_the_plan_as_it_is_and_says_for_which_it_was_made(disk: Path) -> None:
    saved = disk.parent / "plan.json"
    made = zcompiler.schedule(wide(), wide_rows(), options={"memory": "2MiB", "compute": "eager"})
    made.save_plan(saved)
    (graph,) = zcompiler.schedule(
        wide(), wide_rows(), options={"memory": "1GiB", "compute": "eager", "plan": saved}
    ).graphs
    assert graph.plan.placement == made.graphs[0].plan.placement
    assert graph.plan.reasons[0].startswith("as given; made for memory=2MiB on laptop (")


def test_a_plan_that_does_not_fit_is_refused_and_the_model_is_as_it_was(disk: Path) -> None:
    saved = disk.parent / "plan.json"
    zcompiler.schedule(Deep(), tokens(), options={"memory": "8MiB", "compute": "eager"}).save_plan(saved)
    model = Deep()
    with pytest.raises(Exception, match="the given plan needs .* or leave out option plan") as caught:
        torch.compile(model, backend="zinf", options={"memory": "200KiB", "plan": saved, "nvme": str(disk)})(*tokens())
    cause = caught.value.inner_exception  # type: ignore[attr-defined]
    assert isinstance(cause, DoesNotFit) and cause.least > 200 << 10
    assert all(type(p) is torch.nn.Parameter for p in model.parameters()) and not any(disk.rglob("*.*"))


def changed(saved: Path, **graph: Any) -> Path:
    """A plan of `Deep` with parts of its graph replaced."""
    zcompiler.schedule(Deep(), tokens(), options={"memory": "1000KiB", "compute": "eager"}).save_plan(saved)
    document = json.loads(saved.read_text())
    document["graphs"]["graph0"].update(graph)
    saved.write_text(json.dumps(document))
    return saved


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"placement": {f"blocks.{i}": "params=host grads=host optimizer=host" for i in range(7)}},
            "graph0: 7 units (blocks.0, blocks.1, blocks.2, ...) of 7 of the file are not in the graph, and 5 units "
            "(embedding, layers.0, layers.1, ...) of 5 of the graph are not in the file",
        ),
        ({"trains": False}, "graph0: this plan only evaluates and the graph trains"),
        (
            {"placement": dict.fromkeys(UNITS, "params=hots grads=host optimizer=host")},
            "graph0: embedding has params in hots; there are host and nvme",
        ),
    ],
    ids=["other units", "evaluates", "no tier"],
)  # fmt: skip
def test_a_plan_for_another_model_is_refused_in_one_line(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    options = {"memory": "1000KiB", "compute": "eager", "plan": changed(tmp_path / "plan.json", **change)}
    with pytest.raises(OptionError) as caught:
        zcompiler.schedule(Deep(), tokens(), options=options)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_graph_that_the_file_lacks_is_planned_anew_and_warned_of_once(disk: Path) -> None:
    saved = disk.parent / "plan.json"
    options = {"memory": "2MiB", "compute": "eager"}
    found = zcompiler.schedule(Broken(), rows(), options=options)
    document = json.loads(found.plans)
    del document["graphs"]["graph1"]
    saved.write_text(json.dumps(document))
    compiled = torch.compile(Broken(), backend="zinf", options={**options, "plan": saved, "nvme": str(disk)})
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", RuntimeWarning)
        for _ in range(2):
            compiled(*rows()).backward()
    (note,) = zcompiler.stats(compiled).fallbacks
    assert "has no graph1, only graph0: graph1 is planned anew" in note
    assert [str(w.message) for w in heard].count(note) == 1
    assert str(zcompiler.schedule(compiled)["graph1"]) == str(found.graphs[1].final)


def test_a_later_graph_cannot_move_what_an_earlier_one_has_placed(disk: Path) -> None:
    saved = disk.parent / "plan.json"
    options = {"memory": "2MiB", "compute": "eager"}
    document = json.loads(zcompiler.schedule(Broken(), rows(), options=options).plans)
    placement = document["graphs"]["graph1"]["placement"]
    placement["second"] = "params=nvme grads=nvme optimizer=nvme"
    saved.write_text(json.dumps(document))
    with pytest.raises(
        OptionError, match="graph1: second is to rest as params=nvme .* graphs before it have put it to"
    ):
        zcompiler.schedule(Broken(), rows(), options={**options, "plan": saved})


def test_an_evaluation_takes_its_plan(disk: Path) -> None:
    folder = disk.parent / "out"
    folder.mkdir()
    own = {"memory": "800KiB", "compute": "eager", "nvme": str(disk), "place": {"params": "nvme"}}
    with torch.no_grad():
        torch.compile(Deep(), backend="zinf", options={**own, "dump": folder})(*tokens())
        del own["place"]
        compiled = torch.compile(Deep(), backend="zinf", options={**own, "plan": folder / "plan.json"})
        compiled(*tokens())
    assert str(zcompiler.schedule(compiled)["graph0"]) == max((folder / "graph0").glob("*-final.zsched")).read_text()
    assert zcompiler.stats(compiled).read["nvme"]["param"] > 0
