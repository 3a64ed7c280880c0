"""DeepSpeed ZeRO-3 with parameters and optimizer states on nvme, one rank.

`nvme` is its folder, `sub_group` the elements that its optimizer step takes at once, `buffers` how many of them it
holds, `pipeline` whether it reads and writes beside the update. What is not said here is DeepSpeed's own default, but
for what is in the way of comparing. Parameters stay on nvme only where none may stay in memory (`max_in_cpu`, by
default 10⁹ elements). With parameters on nvme and reading ahead, 0.19.8 fails in the second step ("param already
assigned swap buffer"), so that `stage3_prefetch_bucket_size` is 0. Gradients are not clipped (by default: to a norm of
1).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import deepspeed
import torch
import torch.distributed as dist

from bench.peers.child import RATE, Step, serve_system

PARAMETER_BUFFERS = 5
WEIGHT_DECAY = 0.01  # torch.optim.AdamW's default
# What deepspeed's own launcher sets.
RANKS = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_SIZE": "1"}


def zero3(module: Any, settings: Mapping[str, Any]) -> Step:
    os.environ.update(RANKS)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # which deepspeed then uses
    low = settings["precision"] == "bf16"
    config = configuration(settings, max(p.numel() for p in module.parameters()), low)
    # zero.Init on the whole module: built under it, no weights could be loaded that rest on nvme.
    frequencies = [(m, m.inv_freq) for m in module.modules() if hasattr(m, "inv_freq")]
    if low:
        module.bfloat16()
    deepspeed.zero.Init(module=module, config_dict_or_path=config, dtype=torch.bfloat16 if low else torch.float32)
    engine, *_ = deepspeed.initialize(model=module, model_parameters=module.parameters(), config=config)
    for part, values in frequencies:  # rounded to bfloat16 with the weights, positions would no longer be told apart
        part.inv_freq = values

    def step(ids: torch.Tensor) -> torch.Tensor:
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        return loss.detach()

    return step


def configuration(settings: Mapping[str, Any], largest: int, low: bool) -> dict[str, Any]:
    """DeepSpeed's JSON. `largest` is the number of elements of the largest parameter, which a buffer has to hold."""
    pipeline = settings["pipeline"]
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "bf16": {"enabled": low},
        "optimizer": {"type": "AdamW", "params": {"lr": RATE, "weight_decay": WEIGHT_DECAY}},
        "zero_optimization": {
            "stage": 3,
            "sub_group_size": settings["sub_group"],
            "reduce_bucket_size": largest,
            "stage3_prefetch_bucket_size": 0,
            "offload_optimizer": {
                "device": "nvme",
                "nvme_path": settings["nvme"],
                "buffer_count": settings["buffers"],
                "pipeline_read": pipeline,
                "pipeline_write": pipeline,
            },
            "offload_param": {
                "device": "nvme",
                "nvme_path": settings["nvme"],
                "buffer_size": largest,
                "buffer_count": PARAMETER_BUFFERS,
                "max_in_cpu": 0,
            },
        },
        "aio": {"block_size": 8 << 20, "queue_depth": 8},
    }


if __name__ == "__main__":
    serve_system(zero3)
