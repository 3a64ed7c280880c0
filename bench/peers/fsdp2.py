"""FSDP2 with CPU offload, one rank: each layer and the rest are gathered when they are used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

from bench.peers.child import Step, loop, serve_system


def fsdp2(module: Any, settings: Mapping[str, Any]) -> Step:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    offload = CPUOffloadPolicy(pin_memory=False)  # pinned for a copy to a device, of which there is none
    for part in (*module.model.layers, module):
        fully_shard(part, mesh=mesh, offload_policy=offload)
    return loop(module, module.parameters(), settings)


if __name__ == "__main__":
    serve_system(fsdp2)
