"""deepspeed: its JSON configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hotloop.apply.interop import Chosen, ForeignConfig, Format, Read, leave_out, positive, table
from hotloop.core.findings import Value

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


def read(content: Mapping[str, Any]) -> Read:
    warnings: list[str] = []
    choices: dict[str, Mapping[str, Value]] = {}
    autocast = table(content, "torch_autocast", warnings)
    if autocast.get("enabled") is True:
        choices["bf16-autocast" if autocast.get("dtype", "bfloat16") == "bfloat16" else "fp16-autocast"] = {}
        warnings += leave_out(autocast, {"enabled", "dtype"}, "torch_autocast.")
    for key, technique in (("bf16", "bf16-autocast"), ("fp16", "fp16-autocast")):
        half = table(content, key, warnings)
        if half.get("enabled") is True:
            choices[technique] = {}
            warnings.append(
                f"{key}: DeepSpeed casts the whole model and keeps float32 copies; {technique} casts per operator"
            )
            warnings += leave_out(half, {"enabled"}, f"{key}.")
    zero = table(content, "zero_optimization", warnings)
    stage = zero.get("stage", 0)
    if stage in (1, 2, 3):
        technique = "fsdp2" if stage == 3 else "zero-optimizer"
        offload = table(zero, "offload_param", warnings).get("device", "none") if stage == 3 else "none"
        choices[technique] = {"cpu_offload": True} if offload != "none" else {}
        if stage == 2:
            warnings.append("zero_optimization.stage = 2: hotloop shards the optimizer's state only (stage 1), or all")
        if offload not in ("none", "cpu"):
            warnings.append(
                f"zero_optimization.offload_param.device = {offload!r}: hotloop offloads to the host's memory"
            )
        if stage == 3:
            warnings.append(
                "zero_optimization.stage = 3: read as FSDP2, which shards the same state with another implementation"
            )
        warnings += leave_out(zero, {"stage", *(("offload_param",) if stage == 3 else ())}, "zero_optimization.")
    batch_size = positive(content.get("train_micro_batch_size_per_gpu"), "train_micro_batch_size_per_gpu", warnings)
    accumulate = positive(content.get("gradient_accumulation_steps"), "gradient_accumulation_steps", warnings)
    known = {"torch_autocast", "bf16", "fp16", "zero_optimization"}
    known |= {"train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}
    warnings += leave_out(content, known)
    return Read(choices=choices, batch_size=batch_size, accumulate=accumulate, warnings=tuple(warnings))


def parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error


FORMAT = Format(id="deepspeed", parse=parse, write=write, read=read)
