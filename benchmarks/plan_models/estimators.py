"""What DeepSpeed and Accelerate estimate, and what DeepSpeed's ZeRO holds; run by their own interpreter, for
plan_estimators.py.

    python estimators.py estimate CASES     # JSON of the cases -> a line of JSON
    python estimators.py hold STAGE FILE    # two ranks on CPU, three steps -> FILE
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

RANKS, LAYERS, WIDTH, STEPS = 2, 64, 256, 3
BUCKET_PARAMS = 70_000
CONVERSIONS = ("free_grad_in_param_list", "unscale_and_clip_grads")
"""Methods of DeepSpeed's optimizers that run in a step while gradients are in float32."""


def estimate(cases: list[dict[str, Any]]) -> dict[str, Any]:
    import accelerate
    import deepspeed
    import torch
    from accelerate import init_empty_weights
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils.modeling import calculate_maximum_sizes
    from deepspeed.runtime.zero import stage3, stage_1_and_2
    from transformers import GPT2Config, GPT2LMHeadModel

    rows = []
    for case in cases:
        params, nodes = case["params"], -(-case["ranks"] // 8)
        spread = {"num_gpus_per_node": case["ranks"] // nodes, "num_nodes": nodes, "cpu_offload": False}
        _, zero2 = stage_1_and_2.estimate_zero2_model_states_mem_needs(params, **spread)
        _, zero3, _ = stage3.estimate_zero3_model_states_mem_needs(params, case["largest_layer_params"], **spread)
        usage = {name: estimate_training_usage(4 * params, name) for name in ("float32", "float16")}
        rows.append({"zero2": zero2, "zero3": zero3, **usage})
    with init_empty_weights():
        empty = GPT2LMHeadModel(GPT2Config())
    full = GPT2LMHeadModel(GPT2Config())
    counted = {
        "DeepSpeed, weights in memory": stage_1_and_2.model_to_params(full),
        "DeepSpeed, weights on meta": stage_1_and_2.model_to_params(empty),
        "Accelerate, weights on meta": calculate_maximum_sizes(empty)[0] / 4,
    }
    versions = {one.__name__: one.__version__ for one in (torch, deepspeed, accelerate)}
    return {"rows": rows, "counted": counted, "versions": versions}


def count_held() -> dict[str, int]:
    """Bytes of all storages that Python's tensors refer to, by dtype."""
    import torch

    found: dict[int, tuple[int, str]] = {}
    for one in gc.get_objects():
        if type(one) in (torch.Tensor, torch.nn.Parameter):
            for tensor in (one, one.grad if one.is_leaf else None):
                if tensor is not None:
                    storage = tensor.untyped_storage()
                    found[storage.data_ptr()] = (storage.nbytes(), str(tensor.dtype))
    held: dict[str, int] = {}
    for size, dtype in found.values():
        held[dtype] = held.get(dtype, 0) + size
    return held


def hold(rank: int, stage: int, port: int, out: str) -> None:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }  # fmt: skip
    import deepspeed
    import torch

    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    params = sum(parameter.numel() for parameter in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters())
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": BUCKET_PARAMS,
            "allgather_bucket_size": BUCKET_PARAMS,
            "stage3_param_persistence_threshold": 0,
            "stage3_prefetch_bucket_size": BUCKET_PARAMS,
        },
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    del model, optimizer
    in_step: list[dict[str, int]] = []
    for name in CONVERSIONS:
        own = getattr(engine.optimizer, name, None)
        if own is not None:

            def watched(*arguments: Any, own: Any = own, **named: Any) -> Any:
                in_step.append(count_held())
                return own(*arguments, **named)

            setattr(engine.optimizer, name, watched)
    rows = []
    for _ in range(STEPS):
        in_step.clear()
        engine.backward(engine(torch.randn(1, WIDTH, dtype=torch.bfloat16)).float().pow(2).mean())
        gc.collect()
        after = count_held()
        engine.step()
        gc.collect()
        largest = max(in_step, key=lambda held: sum(held.values()))
        rows.append({"after_backward": after, "step": largest, "between_steps": count_held()})
    if rank == 0:
        Path(out).write_text(json.dumps({"params": params, "ranks": RANKS, "steps": rows}))


if __name__ == "__main__":
    if sys.argv[1] == "estimate":
        print(json.dumps(estimate(json.loads(sys.argv[2]))))
    else:
        import torch.multiprocessing

        number = int(sys.argv[2])
        torch.multiprocessing.spawn(hold, (number, 29_810 + number, sys.argv[3]), nprocs=RANKS)
