"""What a user names on the command line, as a model without bytes and the forms of a batch."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from zcompiler.cli.dump.config import configured
from zcompiler.describe.build import Build, built
from zcompiler.errors import ZinfError


@dataclass(frozen=True)
class Target:
    """A model and its batch; `loss` and `optimizer` are None where the user says nothing about them."""

    model: torch.nn.Module
    inputs: Any
    loss: Callable[[Any], torch.Tensor] | None = None
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None


@dataclass(frozen=True)
class Wanted:
    """`name`: a Python file, MODULE:FUNCTION, or a configuration of transformers, to which alone the rest applies."""

    name: str
    settings: tuple[str, ...] = ()
    batch: int = 1
    tokens: int = 512
    dtype: str | None = None
    train: bool = True


def load(wanted: Wanted, build: Build = built) -> Target:
    """ZinfError in one line for what is not there or not as it should be. `build` makes the model: without its bytes,
    unless said otherwise."""
    path = Path(wanted.name)
    if path.suffix == ".py":
        return _from_module(_module_of(path), str(path), build)
    if ":" in wanted.name:
        return _from_function(wanted.name, build)
    size = (wanted.batch, wanted.tokens)
    model, inputs = configured(wanted.name, wanted.settings, size, dtype=wanted.dtype, train=wanted.train, build=build)
    return Target(model, inputs)


def _module_of(path: Path) -> ModuleType:
    if not path.is_file():
        raise ZinfError(f"{path}: there is no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # as an import would: dataclasses and pickles look there
    sys.path.insert(0, str(path.parent.absolute()))  # as `python FILE` would, for what lies beside it
    spec.loader.exec_module(module)
    return module


def _from_module(module: ModuleType, where: str, build: Build) -> Target:
    for name, what in (("model", "returns the model"), ("inputs", "returns a batch, as a dict or a tuple")):
        if not callable(getattr(module, name, None)):
            raise ZinfError(f"{where} has no function {name}(), which {what}")
    model = _checked(build(module.model, f"model() in {where}"), f"model() in {where}")
    return Target(model, module.inputs(), getattr(module, "loss", None), getattr(module, "optimizer", None))


def _from_function(name: str, build: Build) -> Target:
    module_name, _, function_name = name.partition(":")
    sys.path.insert(0, "")  # modules of the working directory, as for `python -m`
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise ZinfError(f"{name}: there is no module {module_name}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ZinfError(f"{name}: module {module_name} has no function {function_name}")
    made = build(function, name)
    if isinstance(made, tuple) and len(made) == 2:
        return Target(_checked(made[0], name), made[1])
    inputs = getattr(module, "inputs", None)
    if not callable(inputs):
        raise ZinfError(f"{name} returns no (model, inputs), and module {module_name} has no function inputs()")
    return Target(_checked(made, name), inputs(), getattr(module, "loss", None), getattr(module, "optimizer", None))


def _checked(made: Any, where: str) -> torch.nn.Module:
    if not isinstance(made, torch.nn.Module):
        raise ZinfError(f"{where} returns {type(made).__name__}, not a model (nn.Module)")
    return made
