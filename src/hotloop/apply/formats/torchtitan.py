"""torchtitan: its TOML job file, as versions 0.2 read it; later ones take the same keys on their command line."""

from __future__ import annotations

import json
from typing import Any

from hotloop.apply.foreign import Chosen, Exported, Format, take_code_arguments


def write(chosen: Chosen, batch_size: int | None, accumulate: int | None) -> Exported:
    """torchtitan's own defaults are choices too (bfloat16, selective recomputation, a fused optimizer): every section
    that a technique speaks of is written out, so that what the strategy does not choose is off."""
    autocast = chosen.pop("bf16-autocast", None) is not None
    whole = chosen.pop("bf16-parameters", None) is not None
    training: dict[str, Any] = {
        "dtype": "bfloat16" if whole else "float32",
        "mixed_precision_param": "bfloat16" if autocast or whole else "float32",
    }
    warnings = []
    if batch_size is not None:
        training["local_batch_size"] = batch_size
    if accumulate is not None:
        warnings.append(
            f"accumulate = {accumulate}: torchtitan derives it; set training.global_batch_size to "
            "local_batch_size x ranks x this"
        )
    compile_: dict[str, Any] = {"enable": False}
    if "compile-model" in chosen:
        settings = chosen.pop("compile-model")
        compile_ = {"enable": True, "components": ["model"], "backend": settings.get("backend", "inductor")}
        unsaid = {
            k: v for k, v in settings.items() if k in ("mode", "dynamic", "fullgraph") and v not in ("default", False)
        }
        warnings += [
            f"compile-model.{key} = {value!r}: torchtitan compiles each block in its own way; left out"
            for key, value in unsaid.items()
        ]
    recompute: dict[str, Any] = {"mode": "none"}
    if "activation-checkpointing" in chosen:
        settings = chosen.pop("activation-checkpointing")
        if settings.get("policy") == "budget":
            recompute = {"mode": "memory_budget", "memory_budget": float(settings.get("budget", 0.5))}
        elif settings.get("policy") == "selective":
            recompute = {"mode": "selective", "selective_ac_option": "op"}
        else:
            recompute = {"mode": "full"}
    code = take_code_arguments(chosen)
    optimizer = code.pop("optimizer", {})
    kind = next(iter(optimizer), "for-loop")
    loader = code.pop("DataLoader", {})
    unknown = loader.pop("multiprocessing_context", None)
    if unknown is not None:
        warnings.append(f"loader-workers.start_method = {unknown!r}: torchtitan has no key for it; left out")
    parallelism: dict[str, Any] = {}
    if "fsdp2" in chosen:
        settings = chosen.pop("fsdp2")
        parallelism["data_parallel_shard_degree"] = -1
        if "reshard_after_forward" in settings:
            parallelism["fsdp_reshard_after_forward"] = "always" if settings["reshard_after_forward"] else "never"
        training["enable_cpu_offload"] = bool(settings.get("offload_params", False))
    else:
        parallelism["data_parallel_shard_degree"] = 1
        warnings.append(
            "set parallelism.data_parallel_replicate_degree to the number of ranks: a strategy has no such number"
        )
    sections = {
        "training": training,
        "training.dataloader": loader,
        "optimizer": {"implementation": kind},
        "compile": compile_,
        "activation_checkpoint": recompute,
        "parallelism": parallelism,
    }
    text = "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
        for name, keys in sections.items()
        if keys
    )
    return Exported(format="torchtitan", text=text, arguments=code, warnings=tuple(warnings))


FORMAT = Format(id="torchtitan", syntax="toml", write=write, read=None)
