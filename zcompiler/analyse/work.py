"""What a region asks of a machine: its matmuls by dtype and shape, the bytes of everything else, calls of kernels.

Matmuls are priced with their operands by the machine, so their bytes are not among `moved`. The rest is bound by
memory; its bytes depend on what is fused, and here two approximations stand for what runs:

* eager code: each op reads its inputs and writes its outputs;
* Inductor: ops that feed each other, with no matmul or scatter between them on any way, are one kernel, which reads
  each tensor from outside once and writes what others use. Inductor itself fuses less across reductions over different
  dimensions, and more where kernels only share an input.

Results of the region, and temporaries so large that the C library does not keep their memory, take new pages each time.
Views move nothing, lookups read as much as they give. Symbolic sizes count as their hints.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import replace

import torch
import torch.fx

from zcompiler.analyse.matmuls import matmuls_of
from zcompiler.analyse.sizes import aliases, result_bytes
from zcompiler.machine.work import Matmul, Work
from zcompiler.torch_compat.nodes import operator_name

_LOOKUPS = ("embedding", "index", "_unsafe_index", "index_select", "gather", "_unsafe_masked_index")
_SCATTERS = ("put", "scatter", "index_add", "index_copy", "embedding_dense_backward")
_NOT_SCATTERS = ("slice_scatter", "select_scatter")  # these copy a whole tensor with a part of it replaced


# What glibc asks the system for alone, and gives back when it is freed.
LARGE = 32 << 20


def work_of(region: torch.fx.GraphModule, fused: bool) -> Work:
    """The work of a region of aten nodes with fake values; `fused`: as Inductor compiles it, else node by node."""
    return _Region(region).work(fused)


class _Region:
    def __init__(self, region: torch.fx.GraphModule) -> None:
        self.base: dict[torch.fx.Node, torch.fx.Node] = {}  # what a view looks into; a tensor of its own: itself
        self.ops: list[torch.fx.Node] = []
        for node in region.graph.nodes:
            looks = node.op == "call_function" and (node.target is operator.getitem or _is_view(node))
            self.base[node] = self.base[node.all_input_nodes[0]] if looks and node.all_input_nodes else node
            if node.op == "call_function" and self.base[node] is node:
                self.ops.append(node)
        self.results = {self.base[n] for n in next(iter(region.graph.find_nodes(op="output"))).all_input_nodes}
        self.matmuls = {node: found for node in self.ops if (found := matmuls_of(node)) is not None}

    def work(self, fused: bool) -> Work:
        groups = self._groups() if fused else [[node] for node in self.ops]
        moved = sum(self._moved(group) for group in groups if group[0] not in self.matmuls)
        kernels = sum(1 for group in groups if any(not self._is_constant(node) for node in group))
        matmuls = _counted(m for found in self.matmuls.values() for m in found)
        return Work(matmuls, moved, kernels, sum(self._made(group) for group in groups))

    def _made(self, group: list[torch.fx.Node]) -> int:
        """Bytes of memory that a kernel of these nodes writes to for the first time."""
        own = set(group)
        sizes = {node: result_bytes(node) for node in group if self._leaves(node, own)}
        return sum(size for node, size in sizes.items() if node in self.results or size >= LARGE)

    def _moved(self, group: list[torch.fx.Node]) -> int:
        """Bytes that a kernel of these nodes reads and writes."""
        own = set(group)
        read: dict[torch.fx.Node, int] = {}
        for node in group:
            for looked_at in node.all_input_nodes:
                source = self.base[looked_at]
                if source not in own and not self._is_constant(source):
                    read[source] = read.get(source, 0) + self._read_bytes(node, looked_at)
        written = sum(result_bytes(node) for node in group if self._leaves(node, own))
        return written + sum(min(size, result_bytes(source)) for source, size in read.items())

    def _read_bytes(self, node: torch.fx.Node, looked_at: torch.fx.Node) -> int:
        if operator_name(node) in _LOOKUPS and looked_at is node.all_input_nodes[0]:
            return result_bytes(node)
        return result_bytes(looked_at)

    def _leaves(self, node: torch.fx.Node, own: set[torch.fx.Node]) -> bool:
        """Whether somebody outside the kernel uses the node. Constants are made where they are used."""
        if node in self.results:
            return True
        outside = any(user not in own for user in self._users(node))
        return outside and not self._is_constant(node)

    def _users(self, node: torch.fx.Node) -> Iterable[torch.fx.Node]:
        """The ops that use a node, directly or through views."""
        for user in node.users:
            if user.op == "output":
                continue
            if self.base[user] is user:
                yield user
            else:
                yield from self._users(user)

    def _is_constant(self, node: torch.fx.Node) -> bool:
        return node.op == "get_attr" or (node.op == "call_function" and not node.all_input_nodes)

    def _groups(self) -> list[list[torch.fx.Node]]:
        """The ops of each kernel. Those of one level, that is with as many kernels of their own on the longest way to
        them, may be fused without a cycle."""
        level: dict[torch.fx.Node, int] = {}
        group: dict[torch.fx.Node, list[torch.fx.Node]] = {}
        for node in self.ops:
            sources = {self.base[i] for i in node.all_input_nodes} & group.keys()
            level[node] = max((level[s] + (self._is_alone(s) or self._is_alone(node)) for s in sources), default=0)
            group[node] = [node]
            for source in sources:
                joined = level[source] == level[node] and not self._is_constant(source)
                if joined and group[source] is not group[node]:
                    absorbed = group[source] + group[node]
                    group.update(dict.fromkeys(absorbed, absorbed))
        return list({id(members): members for members in group.values()}.values())

    def _is_alone(self, node: torch.fx.Node) -> bool:
        name = operator_name(node)
        scatters = any(word in name for word in _SCATTERS) and name not in _NOT_SCATTERS
        return node in self.matmuls or scatters or not name


def _is_view(node: torch.fx.Node) -> bool:
    return aliases(node) or bool(getattr(node.target, "is_view", False))


def _counted(matmuls: Iterable[Matmul]) -> tuple[Matmul, ...]:
    """Equal matmuls as one with a count."""
    counts: dict[Matmul, int] = {}
    for m in matmuls:
        counts[m] = counts.get(m, 0) + 1
    return tuple(replace(m, count=count) for m, count in counts.items())
