"""deepspeed: its JSON configuration."""

from __future__ import annotations

import json
from typing import Any

from hotloop.apply.interop import Chosen, ForeignConfig, Format

AUTOCAST = {"bf16-autocast": "bfloat16", "fp16-autocast": "float16"}


def write(chosen: Chosen, batch_size: int | None, accumulate: int | None) -> ForeignConfig:
    content: dict[str, Any] = {}
    warnings = []
    if batch_size is not None:
        content["train_micro_batch_size_per_gpu"] = batch_size
    else:
        warnings.append(
            "DeepSpeed needs train_micro_batch_size_per_gpu, which a strategy does not contain; give batch_size"
        )
    if accumulate is not None:
        content["gradient_accumulation_steps"] = accumulate
    for technique, dtype in AUTOCAST.items():
        settings = chosen.take(technique)
        if settings is not None:
            content["torch_autocast"] = {"enabled": True, "dtype": dtype}
            warnings += [
                f"{technique}.{key}: torch_autocast scales losses by its own rule; left out"
                for key in ("init_scale", "growth_interval")
                if settings.pop(key, None) is not None
            ]
    if "bf16-parameters" in chosen:
        chosen.refuse("bf16-parameters", "DeepSpeed's bf16 casts every parameter and keeps a float32 copy of each")
    if (settings := chosen.take("fsdp2")) is not None:
        zero: dict[str, Any] = {"stage": 3}
        if settings.pop("cpu_offload", False):
            zero |= {"offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}
        content["zero_optimization"] = zero
        warnings.append("fsdp2: written as ZeRO stage 3, which shards the same state with another implementation")
    elif chosen.take("zero-optimizer") is not None:
        content["zero_optimization"] = {"stage": 1}
    arguments = chosen.take_arguments(with_ddp=False)
    text = json.dumps(content, indent=2) + "\n"
    return ForeignConfig(format="deepspeed", text=text, arguments=arguments, warnings=tuple(warnings))


FORMAT = Format(id="deepspeed", write=write)
