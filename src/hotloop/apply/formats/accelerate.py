"""accelerate: its configuration file (YAML), and arguments for Accelerator and the objects given to prepare()."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.apply.foreign import (
    Chosen,
    ForeignConfig,
    Format,
    Proposal,
    Read,
    ddp_arguments,
    leave_out,
    positive,
    show,
    table,
    take_code_arguments,
    to_yaml,
)

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
    arguments = take_code_arguments(chosen)
    accelerator: dict[str, Any] = {}
    warnings = []
    precision = "no"
    if chosen.take("bf16-autocast") is not None:
        precision = "bf16"
    elif (settings := chosen.take("fp16-autocast")) is not None:
        precision = "fp16"
        scaler: dict[str, Any] = {
            key: settings.pop(key) for key in ("init_scale", "growth_interval") if key in settings
        }
        if scaler:
            arguments["GradScalerKwargs"] = scaler
    content["mixed_precision"] = accelerator["mixed_precision"] = precision
    if accumulate is not None:
        accelerator["gradient_accumulation_steps"] = accumulate
    if (settings := chosen.take("compile-model")) is not None:
        dynamo = {COMPILE[key]: settings.pop(key) for key in COMPILE if key in settings}
        dynamo["dynamo_backend"] = str(dynamo.get("dynamo_backend", "inductor")).upper()
        content["dynamo_config"] = dynamo
    if (settings := chosen.take("fsdp2")) is not None:
        fsdp: dict[str, Any] = {"fsdp_version": 2}
        fsdp |= {FSDP[key]: settings.pop(key) for key in FSDP if key in settings}
        recompute = chosen.look("activation-checkpointing")
        whole_blocks = recompute.get("policy", "all") == "all" and not recompute.get("budget")
        taken = chosen.take("activation-checkpointing") if whole_blocks else None
        fsdp["fsdp_activation_checkpointing"] = taken is not None
        content |= {"distributed_type": "FSDP", "fsdp_config": fsdp}
    else:
        ddp = ddp_arguments(chosen)
        if ddp:
            arguments["DistributedDataParallelKwargs"] = ddp
            content["distributed_type"] = "MULTI_GPU"
            warnings.append('distributed_type is "MULTI_GPU", for ddp settings: write "MULTI_CPU" for gloo')
    if batch_size is not None:
        arguments.setdefault("DataLoader", {})["batch_size"] = batch_size
    arguments["Accelerator"] = accelerator
    return ForeignConfig(format="accelerate", text=to_yaml(content), arguments=arguments, warnings=tuple(warnings))


def read(content: Mapping[str, Any]) -> Read:
    warnings: list[str] = []
    proposals = []
    precision = content.get("mixed_precision")
    if precision in ("bf16", "fp16"):
        proposals.append(Proposal(technique=f"{precision}-autocast", settings={}, key="mixed_precision"))
    elif precision not in (None, "no", False):
        warnings.append(f"mixed_precision = {show(precision)}: no hotloop technique corresponds to it; left out")
    dynamo = table(content, "dynamo_config", warnings)
    backend = str(dynamo.get("dynamo_backend", "no")).lower()
    if backend != "no":
        settings = {ours: dynamo[theirs] for ours, theirs in COMPILE.items() if theirs in dynamo}
        settings["backend"] = backend
        proposals.append(Proposal(technique="compile-model", settings=settings, key="dynamo_config"))
        warnings += leave_out(dynamo, set(COMPILE.values()), "dynamo_config.")
    fsdp = table(content, "fsdp_config", warnings)
    if fsdp and content.get("distributed_type") == "FSDP":
        settings = {ours: fsdp[theirs] for ours, theirs in FSDP.items() if theirs in fsdp}
        proposals.append(Proposal(technique="fsdp2", settings=settings, key="fsdp_config"))
        if fsdp.get("fsdp_version", 1) != 2:
            warnings.append("fsdp_config.fsdp_version is not 2: hotloop shards with FSDP2")
        if fsdp.get("fsdp_activation_checkpointing") is True:
            proposals.append(
                Proposal(technique="activation-checkpointing", settings={}, key="fsdp_activation_checkpointing")
            )
        known = {*FSDP.values(), "fsdp_version", "fsdp_activation_checkpointing"}
        warnings += leave_out(fsdp, known, "fsdp_config.")
    elif fsdp:
        warnings.append("fsdp_config: distributed_type is not FSDP; left out")
    accumulate = positive(content.get("gradient_accumulation_steps"), "gradient_accumulation_steps", warnings)
    silent = {"compute_environment", "distributed_type", "mixed_precision", "dynamo_config", "fsdp_config"}
    if content.get("distributed_type") not in (None, "NO", "FSDP"):
        silent.discard("distributed_type")
    warnings += leave_out(content, silent | {"gradient_accumulation_steps"})
    return Read(proposals=tuple(proposals), accumulate=accumulate, warnings=tuple(warnings))


FORMAT = Format(id="accelerate", syntax="yaml", write=write, read=read)
