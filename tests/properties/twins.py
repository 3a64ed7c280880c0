"""Carries a described run out, with zinf and in memory, and compares all that a user sees."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from hypothesis import reject

import zcompiler
from tests.properties.described import Run, Setting
from tests.properties.interpreter import Side
from tests.properties.modules import build


def carry_out(run: Run, folder: Path) -> None:
    """AssertionError, naming the action, when anything that a user sees differs from the run in memory."""
    if run.setting.memory is not None:
        return _carry_out(run, folder, run.setting.memory)
    limit = "64KiB"
    for _ in range(5):
        try:
            return _carry_out(run, folder, limit)
        except zcompiler.DoesNotFit as error:
            limit = _named_limit(error, limit)
    raise AssertionError(f"each limit that was named was too small again, {limit} at last")


def _carry_out(run: Run, folder: Path, memory: str) -> None:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=64), _own_refusals():
        module = build(run.module)
        twin = copy.deepcopy(module)
        model = torch.compile(module, backend="zinf", options=_options(run.setting, folder, memory))
        plain = torch.compile(twin, backend="aot_eager")
        ours, theirs = Side(module, model, run), Side(twin, plain, run)
        for i, action in enumerate(run.actions):
            with _cases_that_stock_torch_refuses():
                their_results = theirs.act(action)
            assert_same(ours.act(action), their_results, f"action {i} ({action.text()})")
        assert_same(ours.everything(), theirs.everything(), "the end")
        _assert_moved(run.setting, ours)
        zcompiler.restore(module)
        assert_same(ours.everything(), theirs.everything(), "the end, restored")


def _options(setting: Setting, folder: Path, memory: str) -> dict[str, Any]:
    place = {"params": setting.params, "grads": setting.grads, "optimizer": setting.states}
    room = {"memory": memory, "prefetch": setting.prefetch, "late": setting.late}
    return {"nvme": str(folder), "place": place, "compute": "eager", **room}


@contextmanager
def _cases_that_stock_torch_refuses() -> Any:
    """There is nothing to compare with: aot_eager cannot run a backward of a dropout behind a view of a transposed
    result, as it captures another layout than it meets."""
    try:
        yield
    except RuntimeError as error:
        if "view size is not compatible" in str(error):
            reject()
        raise


@contextmanager
def _own_refusals() -> Any:
    try:
        yield
    except torch._dynamo.exc.BackendCompilerFailed as error:
        if isinstance(error.inner_exception, zcompiler.DoesNotFit):
            raise error.inner_exception from error
        raise


def _named_limit(error: zcompiler.DoesNotFit, before: str) -> str:
    found = re.search(r"[Ss]et memory to at least (\d+)MiB", str(error))
    assert found, f"no number to set memory to in: {error}"
    assert before.endswith("KiB") or int(found[1]) > int(before.removesuffix("MiB")), (
        f"{before} was named before {error}"
    )
    return f"{found[1]}MiB"


def _assert_moved(setting: Setting, side: Side) -> None:
    """What was to rest on nvme did: a run that stayed in memory would prove nothing."""
    if not side.used or not side.ran:
        return
    stats = zcompiler.stats(side.model)
    for kind, home, happened in (
        ("param", setting.params, side.ran),
        ("grad", setting.grads, side.had_gradients),
        ("state", setting.states, side.stepped),
    ):
        read, written = stats.read["nvme"][kind], stats.written["nvme"][kind]
        if home == "host":
            assert (read, written) == (0, 0), f"{kind}: {read} B read from nvme, {written} B written"
        elif happened:
            assert written > 0 and (read > 0 or kind != "param"), f"{kind}: {read} B read, {written} B written"


def assert_same(ours: Mapping[str, Any], theirs: Mapping[str, Any], when: str) -> None:
    assert ours.keys() == theirs.keys(), f"{when}: {sorted(ours)} instead of {sorted(theirs)}"
    for name, their in theirs.items():
        own = ours[name]
        if isinstance(their, torch.Tensor) and isinstance(own, torch.Tensor):
            forms = (own.dtype, own.shape), (their.dtype, their.shape)
            assert forms[0] == forms[1], f"{when}: {name} is {forms[0]} instead of {forms[1]}"
            different = (_bits(own) != _bits(their)).any(1).nonzero()
            assert not len(different), (
                f"{when}: {name} differs in {len(different)} of {own.numel()} elements, first "
                + (f"{own.flatten()[different[0]].item()!r} instead of {their.flatten()[different[0]].item()!r}")
            )
        else:
            both_none = own is None and their is None
            assert both_none or own == their, f"{when}: {name} is {own} instead of {their}"


def _bits(t: torch.Tensor) -> torch.Tensor:
    """The bytes of each element. Any two NaNs are the same: torch promises nothing about their sign."""
    t = t.detach().contiguous().flatten()
    if t.is_floating_point():
        t = torch.where(t.isnan(), torch.full_like(t, torch.nan), t)
    return t.view(torch.uint8).reshape(t.numel(), t.element_size())
