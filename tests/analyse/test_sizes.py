"""The working memory of a region, node by node."""

from __future__ import annotations

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from zcompiler.analyse.sizes import working_memory

KIB = 1 << 10


def traced(function: object, *shapes: tuple[int, ...]) -> torch.fx.GraphModule:
    with FakeTensorMode():
        return make_fx(function)(*(torch.empty(shape) for shape in shapes))  # type: ignore[arg-type]


def placeholders(region: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return list(region.graph.find_nodes(op="placeholder"))


def test_two_temporaries_of_a_chain_are_held_at_once() -> None:
    region = traced(lambda x: x.sin().cos().sum(), (256,))
    assert working_memory(region) == 2 * KIB


def test_what_is_made_late_takes_the_place_of_what_is_done_with() -> None:
    """As in a backward: the large temporary is gone before the results are made."""

    def backward(a: torch.Tensor, b: torch.Tensor, big: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        top = big.sin().reshape(4, 256).sum(0)
        return top + a, top + b

    region = traced(backward, (256,), (256,), (1024,))
    a, b, big = placeholders(region)
    assert working_memory(region) == 5 * KIB  # sin and the sum of it, beside all inputs and results
    # The results, 2 KiB, are not there yet.
    assert working_memory(region, given={}) == 3 * KIB
    # 6 KiB are given, and 10 KiB are held at the most: by the sine, while its input is still there.
    assert working_memory(region, given={a: ("a", KIB), b: ("b", KIB), big: ("big", 4 * KIB)}) == 2 * KIB


def test_what_is_given_away_once_done_with_makes_room_for_results() -> None:
    def backward(big: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = big.reshape(4, 256).sum(0)
        wide = total.repeat(4).sin()
        return wide * 2, total * 3

    region = traced(backward, (1024,))
    (big,) = placeholders(region)
    # repeat and its sine beside the sum: 9 KiB, with the 4 KiB of the input gone and the 5 KiB of results not made.
    assert working_memory(region, given={}) == 4 * KIB
    assert working_memory(region, given={big: ("big", 4 * KIB)}) == 0


def test_two_inputs_that_look_into_one_storage_are_there_once() -> None:
    region = traced(lambda x, y: (x.sin() + y.cos()).exp(), (256,), (256,))
    x, y = placeholders(region)
    apart = working_memory(region, given={x: ("x", KIB), y: ("y", KIB)})
    shared = working_memory(region, given={x: ("x", KIB), y: ("x", KIB)})
    # sin, cos and their sum: the storage of x goes after sin if y does not look into it
    assert (apart, shared) == (0, 1 * KIB)


def test_an_input_that_is_handed_out_stays() -> None:
    region = traced(lambda x: (x.view(16, 16), x.sin().cos().exp()), (256,))
    (x,) = placeholders(region)
    assert working_memory(region, given={x: ("x", KIB)}) == working_memory(region, given={}) == 1 * KIB
