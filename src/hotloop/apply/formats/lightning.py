"""lightning: arguments of its Trainer, as keyword arguments and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hotloop.apply.foreign import (
    Chosen,
    ForeignConfig,
    Format,
    Proposal,
    Read,
    ddp_arguments,
    is_plain_bf16,
    leave_out,
    positive,
    show,
    take_code_arguments,
)

PRECISION = {"bf16-autocast": "bf16-mixed", "fp16-autocast": "16-mixed"}
WHOLE = "bf16-true"
OTHER_NAMES = {"bf16": "bf16-autocast", "16": "fp16-autocast", "16-mixed": "fp16-autocast"}


def write(chosen: Chosen, batch_size: int | None, accumulate: int | None) -> ForeignConfig:
    arguments = take_code_arguments(chosen)
    trainer: dict[str, Any] = {}
    warnings = []
    for technique, precision in PRECISION.items():
        settings = chosen.take(technique)
        if settings is not None:
            trainer["precision"] = precision
            warnings += [
                f"{technique}.{key}: pass your own GradScaler to Lightning's MixedPrecision"
                for key in ("growth_interval", "init_scale")
                if settings.pop(key, None) is not None
            ]
    if is_plain_bf16(chosen):
        settings = chosen.take("bf16-parameters") or {}
        for key in ("weights", "state"):
            settings.pop(key)
        trainer["precision"] = WHOLE
        warnings.append("bf16-parameters: Lightning's bf16-true casts every parameter and buffer, normalisations too")
    if accumulate is not None:
        trainer["accumulate_grad_batches"] = accumulate
    if chosen.take("cudnn-benchmark") is not None:
        trainer["benchmark"] = True
    ddp = ddp_arguments(chosen)
    if ddp:
        arguments["DDPStrategy"] = ddp
        warnings.append("DistributedDataParallel's settings are an object: Trainer(strategy=DDPStrategy(...))")
    if "fsdp2" in chosen:
        chosen.refuse(
            "fsdp2",
            "Lightning takes an object, Trainer(strategy=ModelParallelStrategy(...)), and shards in configure_model",
        )
    if batch_size is not None:
        arguments.setdefault("DataLoader", {})["batch_size"] = batch_size
    arguments["Trainer"] = trainer
    text = json.dumps(trainer, indent=2) + "\n"
    return ForeignConfig(format="lightning", text=text, arguments=arguments, warnings=tuple(warnings))


def read(content: Mapping[str, Any]) -> Read:
    warnings: list[str] = []
    proposals = []
    precision = content.get("precision")
    by_name = {theirs: ours for ours, theirs in PRECISION.items()} | OTHER_NAMES
    if str(precision) == WHOLE:
        settings: dict[str, Any] = {"weights": "nearest", "state": "bfloat16"}
        proposals.append(Proposal(technique="bf16-parameters", settings=settings, key="precision"))
        warnings.append("precision = 'bf16-true': normalisations and vectors stay float32 here")
    elif str(precision) in by_name:
        proposals.append(Proposal(technique=by_name[str(precision)], settings={}, key="precision"))
    elif precision is not None and str(precision) not in ("32", "32-true"):
        warnings.append(f"precision = {show(precision)}: no hotloop technique corresponds to it; left out")
    if content.get("benchmark") is True:
        proposals.append(Proposal(technique="cudnn-benchmark", settings={}, key="benchmark"))
    accumulate = positive(content.get("accumulate_grad_batches"), "accumulate_grad_batches", warnings)
    if content.get("strategy") == "ddp_find_unused_parameters_true":
        settings = {"find_unused_parameters": True}
        proposals.append(Proposal(technique="ddp-settings", settings=settings, key="strategy"))
    silent = {"precision", "benchmark", "accumulate_grad_batches"}
    if content.get("strategy") in ("auto", "ddp", "ddp_find_unused_parameters_true"):
        silent.add("strategy")
    warnings += leave_out(content, silent)
    return Read(proposals=tuple(proposals), accumulate=accumulate, warnings=tuple(warnings))


FORMAT = Format(id="lightning", syntax="json", write=write, read=read)
