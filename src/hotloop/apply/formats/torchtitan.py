"""torchtitan: its TOML job file, as versions 0.2 read it; later ones take the same keys on their command line."""

from __future__ import annotations

import json
from typing import Any

from hotloop.apply.foreign import Chosen, ForeignConfig, Format, is_plain_bf16, take_code_arguments

DTYPES = ("bfloat16", "float32")


def write(chosen: Chosen, batch_size: int | None, accumulate: int | None) -> ForeignConfig:
    """torchtitan's own defaults are choices too (bfloat16, selective recomputation, a fused optimizer): every section
    that a technique speaks of is written out, so that what the strategy does not choose is off."""
    autocast = chosen.take("bf16-autocast") is not None
    warnings = []
    whole = is_plain_bf16(chosen)
    if whole:
        settings = chosen.take("bf16-parameters") or {}
        for key in ("weights", "state"):
            settings.pop(key)
        warnings.append("bf16-parameters: training.dtype casts every parameter, normalisations too")
    training: dict[str, Any] = {
        "dtype": "bfloat16" if whole else "float32",
        "mixed_precision_param": "bfloat16" if autocast or whole else "float32",
    }
    if batch_size is not None:
        training["local_batch_size"] = batch_size
    if accumulate is not None:
        warnings.append(
            f"accumulate = {accumulate}: torchtitan derives it; set training.global_batch_size to "
            "local_batch_size x ranks x this"
        )
    compile_: dict[str, Any] = {"enable": False}
    compiling = chosen.take("compile-model")
    if compiling is not None:
        compile_ = {"enable": True, "components": ["model"], "backend": compiling.pop("backend", "inductor")}
        if not compiling.pop("regional", False):
            warnings.append("compile-model: torchtitan compiles each block separately, as regional = true does")
    recompute: dict[str, Any] = {"mode": "none"}
    recomputing = chosen.take("activation-checkpointing")
    if recomputing is not None:
        budget = recomputing.pop("budget", 0.0)
        if budget:
            recompute = {"mode": "memory_budget", "memory_budget": float(budget)}
            if compiling is None:
                warnings.append("activation-checkpointing.budget: torchtitan keeps a budget in compiled models only")
        elif recomputing.pop("policy", "all") == "matmuls":
            recompute = {"mode": "selective", "selective_ac_option": "op"}
            warnings.append("activation-checkpointing.policy: torchtitan recomputes every second matrix product")
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
    sharding = chosen.take("fsdp2")
    if sharding is not None:
        parallelism["data_parallel_shard_degree"] = -1
        if "reshard_after_forward" in sharding:
            always = sharding.pop("reshard_after_forward")
            parallelism["fsdp_reshard_after_forward"] = "always" if always else "never"
        training["enable_cpu_offload"] = bool(sharding.pop("cpu_offload", False))
        if sharding.get("param_dtype") in DTYPES:
            training["mixed_precision_param"] = sharding.pop("param_dtype")
        if sharding.get("reduce_dtype") == "float32":  # the only one that it takes
            training["mixed_precision_reduce"] = sharding.pop("reduce_dtype")
    else:
        parallelism["data_parallel_shard_degree"] = 1
        warnings.append(
            "set parallelism.data_parallel_replicate_degree to the number of ranks: a strategy does not contain it"
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
    return ForeignConfig(format="torchtitan", text=text, arguments=code, warnings=tuple(warnings))


FORMAT = Format(id="torchtitan", syntax="toml", write=write, read=None)
