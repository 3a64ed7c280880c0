"""Prints what statements change in a process in which others train, a line of JSON each: part -> names that differ.

    python -m tests.around.looked 'import zcompiler' ...

A warning that one gives is an error. A stock model, compiled, trains before and after; its numbers are a part too.
"""

from __future__ import annotations

import atexit
import copyreg
import gc
import json
import logging
import os
import signal
import sys
import threading
import warnings
from typing import Any

import torch
import torch._dynamo
import torch._functorch.config
import torch._inductor.config
import torch.nn.modules.module as modules
import torch.optim.optimizer as optimizers

Look = dict[str, dict[str, str]]


def look() -> Look:
    return {
        "hooks": {
            f"{module.__name__}.{name}": repr(list(getattr(module, name).values()))
            for module in (modules, optimizers)
            for name in dir(module)
            if name.startswith("_global_") and isinstance(getattr(module, name), dict)
        },
        "classes": {
            f"{cls.__name__}.{name}": repr(value)
            for cls in (torch.Tensor, torch.nn.Parameter, torch.nn.Module, *known(torch.optim.Optimizer))
            for name, value in vars(cls).items()
            if not name.startswith("__abstract") and name != "_zero_grad_profile_name"
        },
        "registered": {
            "optimizers": repr(sorted(str(cls) for cls in known(torch.optim.Optimizer))),
            "nodes": repr(sorted(map(str, torch.utils._pytree.SUPPORTED_NODES))),
            "safe to load": repr(sorted(map(str, torch.serialization.get_safe_globals()))),
            "pickled by": repr(sorted(map(str, copyreg.dispatch_table))),
            "operators": repr(sorted({s.name for s in torch._C._jit_get_all_schemas() if "zinf" in s.name})),
        },
        "config": {
            f"{config.__name__}.{name}": repr(value)
            for config in (torch._dynamo.config, torch._functorch.config, torch._inductor.config)
            for name, value in config.get_config_copy().items()
        },
        "torch": {
            "threads": repr((torch.get_num_threads(), torch.get_num_interop_threads())),
            "dtype": repr(torch.get_default_dtype()),
            "gradients": repr((torch.is_grad_enabled(), torch.is_inference_mode_enabled())),
            "deterministic": repr(torch.are_deterministic_algorithms_enabled()),
            "random": repr(torch.get_rng_state().tolist()[:32]),
            "print": repr(vars(torch._tensor_str.PRINT_OPTS)),
        },
        "process": {
            "warnings": repr((warnings.filters, warnings.showwarning)),
            "hooks": repr((sys.excepthook, threading.excepthook, sys.displayhook)),
            "signals": repr([signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]),
            "at exit": repr(atexit._ncallbacks()),
            "threads": repr(threading.enumerate()),
            "environment": repr(sorted(os.environ.items())),
            "path": repr(sys.path),
            "log": repr((logging.root.handlers, logging.root.level, logging.getLogger("torch").handlers)),
            "garbage": repr((gc.get_threshold(), gc.isenabled(), gc.callbacks)),
            "switching": repr(sys.getswitchinterval()),
        },
        "numbers": {"of a stock model": repr(trained())},
    }


def known(cls: type) -> list[type]:
    """The class and all that derive from it."""
    return [cls, *(k for below in cls.__subclasses__() for k in known(below))]


def trained() -> list[Any]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1))
        model = torch.compile(module, backend="aot_eager")
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 5)).sum().backward()
            optimizer.step()
        return [p.tolist() for p in model.parameters()]


def differences(before: Look, after: Look) -> dict[str, list[str]]:
    found = {
        part: sorted(n for n in before[part].keys() | after[part].keys() if before[part].get(n) != after[part].get(n))
        for part in before
    }
    return {part: names for part, names in found.items() if names}


def main(statements: list[str]) -> None:
    look()  # what looking itself makes, and what torch loads for it
    warnings.simplefilter("error")
    before = look()
    for statement in statements:
        exec(compile(statement, "statement", "exec"), {})
        after = look()
        print(json.dumps(differences(before, after)))
        before = after


if __name__ == "__main__":
    main(sys.argv[1:])
