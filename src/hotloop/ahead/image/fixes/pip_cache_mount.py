"""pip-cache-mount: keep pip's downloads and built wheels between builds, outside the image."""

from __future__ import annotations

import re
from dataclasses import replace

from hotloop.ahead.image.fix import ImageFix, Rewrite, find_block, join_blocks, split_blocks
from hotloop.ahead.image.packages import read_pip, split_commands
from hotloop.ahead.image.recipe import BuildRecipe, BuildStep
from hotloop.core.findings import Skipped

TARGET = "/root/.cache/pip"


def rewrite(recipe: BuildRecipe) -> Rewrite | Skipped:
    """Gives each RUN with ``pip install`` a cache mount, and removes ``--no-cache-dir``, which would defeat it."""
    blocks, below = split_blocks(recipe)
    reason = "no RUN installs with pip"
    changed = False
    for step in recipe.steps:
        if step.instruction.name != "RUN" or not _uses_pip(step):
            continue
        refused = _refuse(step)
        if refused is not None:
            reason = refused
            continue
        at = find_block(recipe, step)
        first = re.sub(r"^(\s*RUN)\b", rf"\1 --mount=type=cache,target={TARGET}", blocks[at].lines[0], flags=re.I)
        lines = (first, *blocks[at].lines[1:])
        blocks[at] = replace(blocks[at], lines=tuple(re.sub(r"\s--no-cache-dir(?=\s|$)", "", line) for line in lines))
        changed = True
    if not changed:
        return Skipped(reason=reason)
    return Rewrite(recipe=recipe.with_texts(text=join_blocks(blocks, below)), caches=(TARGET,))


def _uses_pip(step: BuildStep) -> bool:
    commands = split_commands(step.instruction.script) or []
    return any(read_pip(words) is not None and words[:2] != ["uv", "pip"] for words in commands)


def _refuse(step: BuildStep) -> str | None:
    line = f"line {step.instruction.first_line}"
    if TARGET in step.cache_mounts or "PIP_CACHE_DIR" in step.variables:
        return f"{line} has its own cache"
    if step.user not in ("root", "0", "root:root", "0:0"):
        return f"{line} installs as {step.user}, whose cache folder is unknown"
    if step.variables.get("PIP_NO_CACHE_DIR", "0").lower() not in ("0", "false", "no", "off"):
        return f"ENV PIP_NO_CACHE_DIR switches pip's cache off in {line}"
    if re.search(r"pip3? cache purge|rm\s+-\S+\s+\S*\.cache", step.instruction.script):
        return f"{line} empties pip's cache itself"
    return None


FIX = ImageFix(id="pip-cache-mount", title="keep pip's downloads and built wheels in a cache mount", rewrite=rewrite)
