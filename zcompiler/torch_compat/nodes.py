"""What a node of a graph is, and what torch's partitioner is told of it."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.fx
from torch.utils.checkpoint import CheckpointPolicy


def is_random(node: torch.fx.Node) -> bool:
    """Whether the node draws from the random stream when it runs.

    Of Inductor's own operators only the one that makes the seeds does; the others compute from a seed.
    """
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        from_seed = ("inductor_random", "inductor_randint", "inductor_lookup_seed")
        return torch.Tag.nondeterministic_seeded in target.tags and not any(name in target.name() for name in from_seed)
    return isinstance(target, torch._ops.HigherOrderOperator) and "rng" in target.name()


def is_view_op(node: torch.fx.Node) -> bool:
    """Whether the node's operator says that its results look into its first tensor, and writes nothing."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


def is_known_and_pure(node: torch.fx.Node) -> bool:
    """Whether the node is an operator of torch's own that writes to none of its inputs."""
    target = node.target
    return (
        isinstance(target, torch._ops.OpOverload)
        and target.namespace in ("aten", "prims")
        and not target._schema.is_mutable
    )


def seed_lookup_targets() -> frozenset[Any]:
    """Inductor's seed lookups: the layer's number is in them, so they stay out of the layers, or no two were equal."""
    import torch._inductor.inductor_prims as prims

    return frozenset({torch.ops.prims.inductor_lookup_seed.default, prims.lookup_seed})


def never_recompute(node: torch.fx.Node) -> None:
    """Tell the partitioner to save this node if backward needs it, unless the user wants it computed again."""
    node.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)


def recompute_in_backward(node: torch.fx.Node) -> None:
    """Tell the partitioner never to save this node.

    What torch.utils.checkpoint marks has a number for each block, and a node is saved after all if a block of a higher
    number uses it: it then counts as that block's input.
    """
    node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
    node.meta["ac_graph_id"] = sys.maxsize


def arguments_of(node: torch.fx.Node) -> dict[str, Any]:
    """A call's arguments by the names in the operator's schema, defaults included."""
    assert isinstance(node.target, torch._ops.OpOverload)
    given: dict[str, Any] = {}
    for i, argument in enumerate(node.target._schema.arguments):
        if i < len(node.args):
            given[argument.name] = node.args[i]
        else:
            given[argument.name] = node.kwargs.get(argument.name, argument.default_value)
    return given


def operator_name(node: torch.fx.Node) -> str:
    """`add` of `aten.add.Tensor`; empty for what is no operator of the dispatcher."""
    target = node.target
    return target.name().split("::")[1].split(".")[0] if isinstance(target, torch._ops.OpOverload) else ""
