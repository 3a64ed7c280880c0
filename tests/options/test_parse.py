from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zcompiler.errors import ZinfError
from zcompiler.options import OPTIONS, Activations, OptionError, Options, Place, parse_options


def parse(raw: Any = None, environ: dict[str, str] | None = None, free: int = 1000) -> Options:
    return parse_options(raw, environ=environ or {"HOME": "/home/me"}, free_memory=lambda: free)


def refused(raw: Any, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(OptionError) as caught:
        parse(raw, environ)
    return str(caught.value)


def test_everything_has_a_default() -> None:
    assert (
        parse(None)
        == parse({})
        == Options(
            memory=1000,
            nvme=(Path("/home/me/.cache/zinf"),),
            place=Place("auto", "auto", "auto"),
            activations=Activations((("*", "auto"),)),
            prefetch="auto",
            compute="inductor",
            optimizer="AdamW",
            late=True,
            master=None,
            tile=None,
            machine=None,
            dump=None,
            nvme_is_ours=True,
        )
    )


def test_options_are_hashable_and_equal_by_value() -> None:
    raw = {"memory": "1GiB", "nvme": ["/a", "/b"], "place": {"params": "host"}}
    assert len({parse(raw), parse(dict(raw))}) == 1


def test_the_table_and_the_fields_are_the_same_options() -> None:
    assert [option.name for option in OPTIONS] == [f.name for f in fields(Options) if f.name != "nvme_is_ours"]


@pytest.mark.parametrize(
    ("given_", "nbytes"),
    [
        (1, 1),
        (3 * 2**30, 3 * 2**30),
        ("1GiB", 2**30),
        ("512MiB", 512 * 2**20),
        ("1.25GB", 1_250_000_000),
        ("1.25GiB", 1_342_177_280),
        ("0.1KiB", 102),  # rounded down: never above what was said
        ("7B", 7),
        ("2TB", 2 * 10**12),
    ],
)
def test_sizes(given_: object, nbytes: int) -> None:
    assert parse({"memory": given_}).memory == nbytes
    assert parse({"prefetch": given_}).prefetch == nbytes


@given(st.integers(1, 10**6), st.sampled_from(["B", "KB", "KiB", "MB", "MiB", "GB", "GiB", "TB", "TiB"]))
def test_a_whole_number_of_units_is_exact(count: int, unit: str) -> None:
    base = 1024 if "i" in unit else 1000
    assert parse({"memory": f"{count}{unit}"}).memory == count * base ** " KMGT".index(unit[0] if unit != "B" else " ")


@given(st.text(max_size=12))
def test_any_text_is_a_size_or_an_option_error(text: str) -> None:
    try:
        assert parse({"memory": text}).memory >= 1
    except OptionError as error:
        assert repr(text) in str(error)


@pytest.mark.parametrize(
    "bad",
    [True, False, float("nan"), float("inf"), 1.5e9, -1, 0, "0GiB", "0.1B", "-1GiB", "1 GB", "lots", "", "12", "1e9B",
     "1GiBB", "٣GB", None, b"1GiB", [1], {}],
)  # fmt: skip
def test_not_a_size(bad: object) -> None:
    message = refused({"memory": bad})
    assert 'option "memory"' in message and repr(bad) in message and "1.25GiB" in message


@pytest.mark.parametrize(("bad", "hint"), [("1 GB", "1GB"), ("1gib", "1GiB"), ("512 mib", "512MiB"), ("2Gb", "2GB")])
def test_a_size_nearly_right_gets_a_hint(bad: str, hint: str) -> None:
    assert f'did you mean "{hint}"?' in refused({"memory": bad})


def test_prefetch_may_be_none_at_all_but_memory_may_not() -> None:
    assert parse({"prefetch": 0}).prefetch == 0
    assert parse({"prefetch": "auto"}).prefetch == "auto"
    assert '"auto", a whole number' in refused({"prefetch": "Auto"})
    assert "cannot be 0" in refused({"memory": 0})


@pytest.mark.parametrize(("bad", "hint"), [("memroy", "memory"), ("Memory", "memory"), ("nvme_path", "nvme")])
def test_an_unknown_option_gets_a_hint(bad: str, hint: str) -> None:
    message = refused({bad: 1})
    assert repr(bad) in message and f'did you mean "{hint}"?' in message and '"prefetch"' in message


def test_an_unknown_option_like_no_other_lists_them_all() -> None:
    for bad in ("zzz", 5, None):
        message = refused({bad: 1})
        assert "did you mean" not in message
        assert all(f'"{option.name}"' in message for option in OPTIONS)


def test_options_must_be_a_dict() -> None:
    assert "are a dict" in refused([("memory", 1)])


@pytest.mark.parametrize(
    ("place", "parts"),
    [
        ({"params": "gpu"}, ('option "place"["params"]', "'gpu'", '"host" or "nvme" or "auto"')),
        ({"params": "nvmee"}, ('did you mean "nvme"?',)),
        ({"grads": True}, ('option "place"["grads"]', "True")),
        ({"optimizer": {"m": "host"}}, ('option "place"["optimizer"]',)),
        ({"parms": "host"}, ("'parms'", 'did you mean "params"?', '"grads"')),
        ({3: "host"}, ("a key of", "3")),
        ("nvme", ("'nvme'", "a dict such as")),
        (None, ("None",)),
    ],
)
def test_bad_places(place: object, parts: tuple[str, ...]) -> None:
    message = refused({"place": place})
    assert all(part in message for part in parts), message


def test_place_fills_what_is_not_said() -> None:
    assert parse({"place": {"grads": "host"}}).place == Place("auto", "host", "auto")


@pytest.mark.parametrize(
    ("name", "bad", "part"),
    [
        ("compute", "enductor", 'did you mean "inductor"?'),
        ("compute", True, '"inductor" or "eager"'),
        ("optimizer", "Adamw", 'did you mean "AdamW"?'),
        ("optimizer", "LBFGS", '"SGD"'),
        ("optimizer", ["AdamW"], "['AdamW']"),
        ("machine", "lapto", 'did you mean "laptop"?'),
        ("machine", "", "a path"),
        ("machine", 3, "a path"),
    ],
)
def test_bad_choices(name: str, bad: object, part: str) -> None:
    message = refused({name: bad})
    assert f'option "{name}"' in message and part in message


def test_a_machine_is_a_name_or_a_path() -> None:
    assert parse({"machine": "dgx-2"}).machine == "dgx-2"
    assert parse({"machine": "/a/box.toml"}).machine == parse({"machine": Path("/a/box.toml")}).machine
    assert parse({"machine": "box.toml"}).machine == Path.cwd() / "box.toml"
    assert parse({"machine": Path("laptop")}).machine == Path.cwd() / "laptop"


def test_an_option_error_is_a_value_error_and_one_of_ours() -> None:
    assert issubclass(OptionError, ValueError) and issubclass(OptionError, ZinfError)


def test_memory_that_cannot_be_told_or_is_not_there_must_be_said() -> None:
    def unknown() -> int:
        raise OSError("no /proc/meminfo")

    with pytest.raises(OptionError, match=r'no /proc/meminfo.*options=\{"memory": "4GiB"\}'):
        parse_options({}, environ={}, free_memory=unknown)
    assert parse_options({"memory": 1}, environ={"HOME": "/"}, free_memory=unknown).memory == 1
    with pytest.raises(OptionError, match="nothing is free"):
        parse({}, free=0)


def test_activations_for_all_units_and_for_some() -> None:
    assert parse({"activations": "keep"}).activations == Activations()
    assert parse({"activations": "auto"}) == parse({})
    everywhere = parse({"activations": "recompute+nvme"}).activations
    assert everywhere.recomputes("layers.3") and everywhere.offloads("layers.3")
    some = parse({"activations": {"layers.[01]": "nvme", "layers.*": "recompute"}}).activations
    assert [some.of(unit) for unit in ("layers.0", "layers.2", "head")] == ["nvme", "recompute", "keep"]
    assert not some.recomputes("layers.1") and not some.offloads("layers.2")


def test_activations_that_are_no_choice_are_refused() -> None:
    assert "option \"activations\" cannot be 'disk'" in refused({"activations": "disk"})
    assert 'option "activations"["layers.*"] cannot be \'recomputed\'' in refused(
        {"activations": {"layers.*": "recomputed"}}
    )
    assert "a glob over units" in refused({"activations": {3: "nvme"}})
    assert '{"activations": "nvme"}' in refused({"place": {"activations": "nvme"}})


def test_tiles_are_taken_in_order() -> None:
    assert parse({"tile": {"layers.*.mlp": 4, "*": 2}}).tile == (("layers.*.mlp", 4), ("*", 2))


def test_tiles_are_left_to_zinf_or_switched_off() -> None:
    assert parse({"tile": "auto"}).tile is None
    assert parse({"tile": {}}).tile == ()


@pytest.mark.parametrize(
    ("tile", "parts"),
    [
        ("all", ("'all'", '"auto" or a dict such as')),
        (4, ("4", '"auto" or a dict such as')),
        ({"up": 0}, ('option "tile"["up"]', "0", "a whole number from 1 on")),
        ({"up": True}, ("True",)),
        ({"up": "2"}, ("'2'",)),
        ({3: 2}, ("a key of", "3", "glob")),
    ],
)
def test_bad_tiles(tile: object, parts: tuple[str, ...]) -> None:
    message = refused({"tile": tile})
    assert all(part in message for part in parts), message
