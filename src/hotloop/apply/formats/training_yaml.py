"""training: a plain YAML block, training: {dtype, batch_size, gradient_accumulation_steps, num_workers, ...}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.apply.foreign import (
    Chosen,
    ForeignConfig,
    Format,
    Proposal,
    Read,
    leave_out,
    positive,
    show,
    table,
    to_yaml,
)

DTYPES = {
    "bf16": "bf16-autocast",
    "bfloat16": "bf16-autocast",
    "fp16": "fp16-autocast",
    "float16": "fp16-autocast",
}
FULL = (None, "fp32", "float32")


def write(chosen: Chosen, batch_size: int | None, accumulate: int | None) -> ForeignConfig:
    block: dict[str, Any] = {"dtype": "float32"}
    for dtype in ("bfloat16", "float16"):
        if chosen.take(DTYPES[dtype]) is not None:
            block["dtype"] = dtype
    if batch_size is not None:
        block["batch_size"] = batch_size
    if accumulate is not None:
        block["gradient_accumulation_steps"] = accumulate
    if "num_workers" in chosen.look("loader-workers"):
        settings = chosen.take("loader-workers") or {}
        block |= {key: settings.pop(key) for key in ("num_workers", "prefetch_factor") if key in settings}
    return ForeignConfig(format="training", text=to_yaml({"training": block}))


def read(content: Mapping[str, Any]) -> Read:
    warnings = leave_out(content, {"training"})
    block = table(content, "training", warnings)
    if not block:
        warnings.append("the table 'training' is missing or empty")
    proposals = []
    dtype = block.get("dtype")
    if isinstance(dtype, str) and dtype in DTYPES:
        proposals.append(Proposal(technique=DTYPES[dtype], settings={}, key="training.dtype"))
    elif dtype not in FULL:
        warnings.append(f"training.dtype = {show(dtype)}: no hotloop technique corresponds to it; left out")
    settings = {key: block[key] for key in ("num_workers", "prefetch_factor") if key in block}
    if settings.get("num_workers"):
        proposals.append(Proposal(technique="loader-workers", settings=settings, key="training.num_workers"))
    elif settings.get("prefetch_factor") is not None:
        warnings.append("training.prefetch_factor has no effect without num_workers; left out")
    batch_size = positive(block.get("batch_size"), "training.batch_size", warnings)
    accumulate = positive(block.get("gradient_accumulation_steps"), "training.gradient_accumulation_steps", warnings)
    known = {"dtype", "num_workers", "prefetch_factor", "batch_size", "gradient_accumulation_steps"}
    warnings += leave_out(block, known, "training.")
    return Read(proposals=tuple(proposals), batch_size=batch_size, accumulate=accumulate, warnings=tuple(warnings))


FORMAT = Format(id="training", syntax="yaml", write=write, read=read)
