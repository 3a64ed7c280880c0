"""Does the actions of a described run, and tells what a user sees of each."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import optim

from tests.properties.described import Action, Run
from tests.properties.modules import batches
from tests.right.twins import gradients

OPTIMIZERS: Mapping[str, Callable[..., optim.Optimizer]] = {
    "AdamW": partial(optim.AdamW, lr=1e-2),
    "AdamW fused": partial(optim.AdamW, lr=1e-2, fused=True),
    "AdamW amsgrad foreach": partial(optim.AdamW, lr=1e-2, amsgrad=True, foreach=True),
    "SGD momentum": partial(optim.SGD, lr=1e-2, momentum=0.9),
    # Not in its foreach form: whether another parameter has a momentum yet changes how stock torch rounds bf16 there.
    "SGD nesterov": partial(optim.SGD, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.1),
}


class Side:
    """One of the twins: the module, its compiled form, an optimizer, and what the user holds."""

    def __init__(self, module: torch.nn.Module, model: Any, run: Run) -> None:
        self.module, self.model, self.described = module, model, run.module
        self.parameters = dict(module.named_parameters())
        # An optimizer refuses to be made for nothing.
        given = list(self.parameters.values()) or [torch.nn.Parameter(torch.ones(1))]
        self.optimizer = OPTIMIZERS[run.setting.optimizer](given)
        self.batches = batches(run.module)
        self.waiting: list[torch.Tensor] = []
        self.kept: list[torch.Tensor] = []  # gradients
        self.aliases: list[torch.Tensor] = []  # of weights
        self.aside: dict[torch.nn.Parameter, torch.Tensor] = {}  # weights
        self.replaced: set[torch.nn.Parameter] = set()  # weights that have not been to their home since
        self.saved = self._save()
        # What a session may move: of these it holds at least one as soon as a forward has run.
        self.used = [p for name, p in self.parameters.items() if ".spare." not in name and p.numel()]
        self.ran = self.had_gradients = self.stepped = False
        torch.manual_seed(7)
        self.random = torch.get_rng_state()

    def act(self, action: Action) -> dict[str, Any]:
        """Do it; what the user sees of it, by name."""
        torch.set_rng_state(self.random)
        try:
            return self._do(action.verb, action.of) or {}
        finally:
            self.random = torch.get_rng_state()

    def everything(self) -> dict[str, Any]:
        kept: dict[str, Any] = {f"kept gradient {i}": grad for i, grad in enumerate(self.kept)}
        kept |= {f"weight {name} set aside": self.aside.get(p) for name, p in self.parameters.items()}
        kept |= {f"kept alias {i}": alias for i, alias in enumerate(self.aliases)}
        inputs = {f"gradient of input {i}": x.grad for i, x in enumerate(self.batches)}
        return self._weights() | self._gradients() | kept | inputs | self._states() | {"random": self.random}

    def _do(self, verb: str, of: Any) -> dict[str, Any] | None:
        match verb:
            case "train on":
                loss = self._forward(of)
                return {"loss": loss.detach(), **self._backward([loss])}
            case "forward of":
                self.waiting.append(self._forward(of))
                return {"loss": self.waiting[-1].detach()}
            case "backward of what waits":
                losses, self.waiting = self.waiting, []
                return self._backward(losses)
            case "evaluate":
                self.model.eval()
                with torch.no_grad():
                    loss = self._forward(of)
                self.model.train()
                return {"loss": loss, "random": torch.get_rng_state()}
            case "step":
                self.stepped |= any(p.grad is not None and p not in self.replaced for p in self.used)
                if self.optimizer.defaults.get("fused"):
                    # Stock torch itself is wrong: a fused step does not say that it changed the weights, and a
                    # backward that waits goes through some new and some old ones. Zinf refuses it.
                    self.waiting = []
                self._about_to_change_weights()
                self.optimizer.step()
            case "zero_grad to None" | "zero_grad to zero":
                self.optimizer.zero_grad(set_to_none=verb.endswith("None"))
            case "clip gradients to":
                return {"norm": torch.nn.utils.clip_grad_norm_(self.module.parameters(), of)}
            case "set lr to":
                for group in self.optimizer.param_groups:
                    group["lr"] = of
            case "save":
                self.saved = self._save()
            case "load weights":
                self._about_to_change_weights()
                self.module.load_state_dict(self._load()["module"])
            case "load the optimizer":
                self.optimizer.load_state_dict(self._load()["optimizer"])
            case "look at a deepcopy":
                return self._deepcopy()
            case "look at norms":
                return {name: p.norm() for name, p in self.parameters.items()}
            case "look at states":
                return self._states()
            case "look at gradients":
                return self._gradients()
            case "keep" | "double" | "drop":
                self._do_to_gradient(verb, self.parameters[of.removeprefix("the gradient of ")])
            case _:
                self._do_to_parameter(verb, self.parameters[of])
        return None

    def _forward(self, batch: str) -> torch.Tensor:
        self.ran = True
        self.replaced.clear()
        return self.model(self.batches[int(batch.removeprefix("batch "))])

    def _do_to_gradient(self, verb: str, p: torch.nn.Parameter) -> None:
        match verb:
            case "keep":
                self.kept += [p.grad] if p.grad is not None else []
            case "double":
                if p.grad is not None:
                    p.grad.mul_(2)
            case "drop":
                p.grad = None

    def _do_to_parameter(self, verb: str, p: torch.nn.Parameter) -> None:
        match verb:
            case "edit":
                self._about_to_change_weights()
                with torch.no_grad():
                    p.mul_(0.5)
                    p.view(-1)[:1] = 0.25
            case "replace data of":
                self._replace(p, p.data.clone().add_(0.125))
            case "set aside data of":
                self.aside[p] = p.data
                self._replace(p, torch.full_like(p.data, 0.125))
            case "keep an alias of":
                self.aliases.append(p.detach())
                if not self.ran:  # it stays in ordinary memory
                    self.used = [q for q in self.used if q is not p]
            case "put back data of":
                self._replace(p, self.aside.pop(p, p.data))
            case "freeze or thaw":
                p.requires_grad_(not p.requires_grad)
            case _:
                raise ValueError(f"nothing to do is called {verb}")

    def _replace(self, p: torch.nn.Parameter, data: torch.Tensor) -> None:
        """What waits goes: which values a backward would see that began with others is left open."""
        self.waiting = []
        self.replaced.add(p)
        p.data = data

    def _about_to_change_weights(self) -> None:
        """Zinf casts a weight again in backward, and refuses one that has changed; stock torch keeps the cast copy."""
        if self.described.casts_weights:
            self.waiting = []

    def _backward(self, losses: Iterable[torch.Tensor]) -> dict[str, Any]:
        """Refused by torch when a weight has changed since; both twins must say so."""
        losses = [loss for loss in losses if loss.requires_grad]
        if not losses:
            return {}
        try:
            torch.stack(losses).sum().backward()
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
            return {"refused": True, "random": torch.get_rng_state()}
        self.had_gradients |= any(p.grad is not None for p in self.used)
        return {"refused": False, "random": torch.get_rng_state()}

    def _weights(self) -> dict[str, torch.Tensor]:
        return dict(self.module.state_dict())

    def _gradients(self) -> dict[str, torch.Tensor | None]:
        return {f"gradient of {name}": grad for name, grad in gradients(self.module).items()}

    def _states(self) -> dict[str, Any]:
        saved = self.optimizer.state_dict()
        flat = {f"state {key} of {i}": value for i, state in saved["state"].items() for key, value in state.items()}
        return {**flat, "groups": saved["param_groups"]}

    def _save(self) -> bytes:
        file = io.BytesIO()
        torch.save({"module": self.module.state_dict(), "optimizer": self.optimizer.state_dict()}, file)
        return file.getvalue()

    def _load(self) -> dict[str, Any]:
        return torch.load(io.BytesIO(self.saved))

    def _deepcopy(self) -> dict[str, Any]:
        copied = copy.deepcopy(self.module)
        seen = copy.deepcopy(dict(copied.state_dict()))
        with torch.no_grad():
            for p in copied.parameters():
                p.zero_()
        return seen
