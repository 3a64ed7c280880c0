"""Models of transformers by their configuration alone: nothing is downloaded and no weight is made."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from zcompiler.describe.build import Build, built
from zcompiler.errors import ZinfError, did_you_mean

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def configured(
    name: str, settings: Sequence[str], size: tuple[int, int], *, dtype: str | None, train: bool, build: Build = built
) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The model of a configuration (a JSON file, a folder with config.json, a model type such as `llama`, or a class
    name such as `LlamaForCausalLM`) with `settings` NAME=VALUE on top, and a batch of size (sequences, tokens).

    ZinfError for a configuration or setting that is not known.
    """
    try:
        import transformers
    except ImportError as error:
        raise ZinfError(
            f"{name} is no Python file and no MODULE:FUNCTION, and configurations need transformers: "
            "pip install 'zinf[hf]'"
        ) from error
    config = _config(transformers, name, _parsed(settings))
    if dtype is not None:
        config.dtype = DTYPES[dtype]
    kind = _class_of(transformers, name, config)
    model = build(lambda: kind._from_config(config), f"{kind.__name__} of {name}")
    model.train(train)
    ids = torch.zeros(size, dtype=torch.int64)
    has_loss = train and "labels" in inspect.signature(kind.forward).parameters
    return model, {"input_ids": ids, "labels": ids.clone()} if has_loss else {"input_ids": ids}


def _parsed(settings: Sequence[str]) -> dict[str, Any]:
    found = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ZinfError(f"--set {text}: write NAME=VALUE, such as --set num_hidden_layers=80")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found


def _config(transformers: Any, name: str, settings: Mapping[str, Any]) -> Any:
    path = Path(name)
    raw: dict[str, Any] = {}
    if path.exists():
        file = path / "config.json" if path.is_dir() else path
        raw = _read(file)
        if "model_type" not in raw:
            raise ZinfError(f'{file} has no "model_type", so it is no configuration of transformers')
        kind = _config_class(transformers, name := str(raw.pop("model_type")), f"model_type {name!r} in {file}")
    elif path.suffix == ".json":
        raise ZinfError(f"{path}: there is no such file")
    else:
        kind = _config_class(transformers, name, name)
    known = kind().to_dict()
    for setting in settings:
        if setting not in known:
            raise ZinfError(f"--set {setting}: {kind.__name__} has no such setting{did_you_mean(setting, known)}")
    # A loop that trains has no use for a cache of keys and values; whoever wants one says use_cache=true.
    return kind(**{**raw, **({"use_cache": False} if "use_cache" in known else {}), **settings})


def _read(file: Path) -> dict[str, Any]:
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ZinfError(f"{file}: there is no such file") from error
    except json.JSONDecodeError as error:
        raise ZinfError(f"{file} is no JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ZinfError(f"{file} is no JSON object")
    return raw


def _config_class(transformers: Any, name: str, where: str) -> Any:
    types = transformers.CONFIG_MAPPING
    if name in types:
        return types[name]
    found: Any = getattr(transformers, name, None) if name.isidentifier() else None
    if isinstance(found, type):
        if issubclass(found, transformers.PreTrainedConfig):
            return found
        if issubclass(found, transformers.PreTrainedModel):
            return found.config_class  # type: ignore[attr-defined]
    raise ZinfError(
        f"{where}{did_you_mean(name, list(types))} is no Python file, no MODULE:FUNCTION, no configuration file, and "
        f"no model type or class that transformers {transformers.__version__} knows"
    )


def _class_of(transformers: Any, name: str, config: Any) -> Any:
    """The class that the user or the configuration names; else the one that predicts tokens."""
    named = getattr(transformers, name, None) if name.isidentifier() else None
    if isinstance(named, type) and issubclass(named, transformers.PreTrainedModel):
        return named
    for architecture in config.architectures or ():
        if (found := getattr(transformers, architecture, None)) is not None:
            return found
    for auto in ("CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM"):
        mapping = getattr(transformers, f"MODEL_FOR_{auto}_MAPPING")
        if type(config) in mapping:
            return mapping[type(config)]
    if type(config) in transformers.MODEL_MAPPING:
        return transformers.MODEL_MAPPING[type(config)]
    raise ZinfError(f"{name}: transformers has no model for {type(config).__name__}; name its class instead")
