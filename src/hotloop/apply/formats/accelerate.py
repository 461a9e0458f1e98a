"""accelerate: its configuration file (YAML), and arguments for Accelerator and the objects given to prepare()."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hotloop.apply.interop import DDP, Chosen, ForeignConfig, Format

COMPILE = {
    "backend": "dynamo_backend",
    "mode": "dynamo_mode",
    "dynamic": "dynamo_use_dynamic",
    "fullgraph": "dynamo_use_fullgraph",
    "regional": "dynamo_use_regional_compilation",
}
FSDP = {"reshard_after_forward": "fsdp_reshard_after_forward", "cpu_offload": "fsdp_offload_params"}


def write(chosen: Chosen, batch_size: int | None, accumulate: int | None) -> ForeignConfig:
    content: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "NO"}
    accelerator: dict[str, Any] = {}
    scaler: dict[str, Any] = {}
    warnings = []
    precision = "no"
    if chosen.take("bf16-autocast") is not None:
        precision = "bf16"
    elif (settings := chosen.take("fp16-autocast")) is not None:
        precision = "fp16"
        scaler = {key: settings.pop(key) for key in ("init_scale", "growth_interval") if key in settings}
    content["mixed_precision"] = accelerator["mixed_precision"] = precision
    if accumulate is not None:
        accelerator["gradient_accumulation_steps"] = accumulate
    if (settings := chosen.take("compile-model")) is not None:
        dynamo = {COMPILE[key]: settings.pop(key) for key in COMPILE if key in settings}
        dynamo["dynamo_backend"] = str(dynamo.get("dynamo_backend", "inductor")).upper()
        content["dynamo_config"] = dynamo
    sharding = chosen.take("fsdp2")
    if sharding is not None:
        fsdp: dict[str, Any] = {"fsdp_version": 2}
        fsdp |= {FSDP[key]: sharding.pop(key) for key in FSDP if key in sharding}
        recompute = chosen.look("activation-checkpointing")
        whole_blocks = recompute.get("policy", "all") == "all" and not recompute.get("budget")
        taken = chosen.take("activation-checkpointing") if whole_blocks else None
        fsdp["fsdp_activation_checkpointing"] = taken is not None
        content |= {"distributed_type": "FSDP", "fsdp_config": fsdp}
    arguments = chosen.take_arguments(with_ddp=sharding is None)
    if DDP in arguments:
        arguments["DistributedDataParallelKwargs"] = arguments.pop(DDP)
        content["distributed_type"] = "MULTI_GPU"
        warnings.append('distributed_type is "MULTI_GPU", for ddp settings: write "MULTI_CPU" for gloo')
    if scaler:
        arguments["GradScalerKwargs"] = scaler
    if batch_size is not None:
        arguments.setdefault("DataLoader", {})["batch_size"] = batch_size
    arguments["Accelerator"] = accelerator
    return ForeignConfig(format="accelerate", text=to_yaml(content), arguments=arguments, warnings=tuple(warnings))


def to_yaml(content: Mapping[str, Any], indent: str = "") -> str:
    """Tables of scalars as YAML; strings are quoted as JSON, which YAML reads.

    >>> to_yaml({"a": "no", "b": {"c": True}})
    'a: "no"\\nb:\\n  c: true\\n'
    """
    lines = []
    for key, value in content.items():
        if isinstance(value, Mapping):
            lines.append(f"{indent}{key}:\n{to_yaml(value, indent + '  ')}")
        else:
            lines.append(f"{indent}{key}: {json.dumps(value)}\n")
    return "".join(lines)


FORMAT = Format(id="accelerate", write=write)
