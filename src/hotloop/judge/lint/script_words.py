"""Words that several rules of training scripts use: names of metrics and lengths, wrappers of shards."""

from __future__ import annotations

import ast
import re

from hotloop.judge.lint.formats.script import LintedScript

SHARDS = re.compile(r"(^|\.)(FSDP|FullyShardedDataParallel)$")

ACCUMULATION = re.compile(r"(?i)accum|update_freq|grad_acc|iter_size|micro|virtual|batch_multipl|subdivisions")

HIGHER = re.compile(
    r"(?i)(^|_)(acc\w*|f1\w*|auc|auroc|m?ap|m?iou|dice|bleu|psnr|ssim|score|top1|top5|recall|precision|reward|r2)(_|\d|$)"
)

LOWER = re.compile(r"(?i)(^|_)(\w*loss|err\w*|wer|cer|rmse|mse|mae|ppl|perplexity|fid|nll|bpc)(_|\d|$)")


def find_direction(metric: object) -> str:
    """``max`` or ``min`` where a metric's name shows which is better; else empty."""
    last = re.split(r"[/.]", metric)[-1] if isinstance(metric, str) else ""
    up, down = bool(HIGHER.search(last)), bool(LOWER.search(last))
    return "" if up == down else "max" if up else "min"


UNIT_BATCHES = re.compile(
    r"(?i)(total|max|num|n|train|training)_?(steps|iters|iterations|updates|batches)|per_?epoch|loader|stepping_batches"
)


UNIT_EPOCHS = re.compile(r"(?i)^(?!warm).*epochs?$")


PER_BATCH = (
    "OneCycleLR",
    "get_linear_schedule_with_warmup",
    "get_cosine_schedule_with_warmup",
    "get_constant_schedule_with_warmup",
)

LENGTHS = {
    "CosineAnnealingLR": (1, "T_max"),
    "StepLR": (1, "step_size"),
    "MultiStepLR": (1, "milestones"),
    "PolynomialLR": (1, "total_iters"),
    "LinearLR": (3, "total_iters"),
    "OneCycleLR": (2, "total_steps"),
    **{one: (2, "num_training_steps") for one in PER_BATCH[1:]},
}
"""Schedulers -> the position and name of their length argument."""


def find_unit(script: LintedScript, length: ast.AST | None, depth: int = 0) -> str:
    """Whether a number counts ``epochs`` or ``batches``, by the numbers from which it is computed; empty if unclear."""
    names = [one for one in ast.walk(length) if isinstance(one, (ast.Name, ast.Attribute))] if length else []
    inner = {one.value for one in names if isinstance(one, ast.Attribute)}
    units = set[str]()
    for one in names:
        last = one.attr if isinstance(one, ast.Attribute) else one.id
        bound = script.values(one) if one not in inner and depth < 4 else []
        if UNIT_BATCHES.search(last):
            return "batches"
        if one not in inner:
            units.add("epochs" if UNIT_EPOCHS.search(last) else find_unit(script, bound[0], depth + 1) if bound else "")
    return "batches" if "batches" in units else "epochs" if units == {"epochs"} else ""
