"""packages-first: install the packages before the code is copied, so that editing the code does not repeat the
install."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from hotloop.ahead.image.fix import Block, ImageFix, Rewrite, find_block, join_blocks, split_blocks
from hotloop.ahead.image.packages import find_needs, read_requirement_files
from hotloop.ahead.image.recipe import BuildRecipe, BuildStep
from hotloop.core.findings import Skipped


def rewrite(recipe: BuildRecipe) -> Rewrite | Skipped:
    """In each stage, moves the copies of code after the steps that only install packages, and copies the files that
    these read before them: requirements files, local packages. Nothing moves across any other RUN."""
    reasons = []
    for index in range(len(recipe.stages)):
        found = _move_code(recipe, recipe.stages[index])
        if isinstance(found, str):
            reasons.append(found)
        else:
            moved = rewrite(found)  # the next stage: nothing is left to move in this stage
            return moved if isinstance(moved, Rewrite) else Rewrite(recipe=found)
    return Skipped(
        reason=next((reason for reason in reasons if reason), "no package is installed after a copy of the code")
    )


@dataclass(frozen=True, slots=True)
class Need:
    """A file or folder of the image from which a package is installed, its place in the context, and its files
    there."""

    path: str
    source: str
    is_folder: bool
    reads: frozenset[str]


def _move_code(recipe: BuildRecipe, steps: Sequence[BuildStep]) -> BuildRecipe | str:
    """The recipe with the code copied later in this stage, or the reason why not; empty if there is nothing to move."""
    copies: list[BuildStep] = []
    needs: list[Need] = []
    last: BuildStep | None = None
    for step in steps:
        if step.takes_context:
            copies.append(step)
        elif step.instruction.name == "RUN" and copies:
            found = _find_needs(recipe, step, copies)
            if found is None:
                break
            needs += found
            last = step
        elif copies and step.instruction.name in ("SHELL", "ONBUILD", "COPY", "ADD"):
            break
    if last is None:
        return ""
    needed = frozenset(path for need in needs for path in need.reads)
    moving = [step for step in copies if step.position < last.position and not step.reads <= needed]
    if not moving:
        return ""
    between = steps[moving[0].position + 1 : last.position]
    for step in moving:
        line, words = step.instruction.first_line, step.instruction.exec_form or step.instruction.arguments.split()
        if "$" in step.instruction.arguments and any(one.instruction.name in ("ENV", "ARG") for one in between):
            return f"line {line} uses a variable that may change before the packages are installed"
        if not words[-1].startswith("/") and any(one.instruction.name == "WORKDIR" for one in between):
            return f"line {line} copies to a folder that depends on a later WORKDIR"
    early = [need for need in dict.fromkeys(needs) if any(need.reads & step.reads for step in moving)]
    return recipe.with_texts(text=_place(recipe, moving, last, early))


def _find_needs(recipe: BuildRecipe, step: BuildStep, copies: Sequence[BuildStep]) -> list[Need] | None:
    """The copied files that a RUN needs; None if it may need any of them."""
    paths = find_needs(step.instruction.script, step.workdir)
    if paths is None or step.instruction.heredocs:
        return None
    there = {path: source for copy in copies for path, source in copy.files.items()}
    found: list[Need] = []
    for path in paths:
        inside = {one: source for one, source in there.items() if one.startswith(f"{path}/")}
        if path in there:
            files = read_requirement_files(path, partial(recipe.read_copied, there))
            if files is None:
                return None
            found += [Need(one, there[one], False, frozenset((there[one],))) for one in sorted(files)]
        elif inside:
            sources = {source.removesuffix(one.removeprefix(path)) for one, source in inside.items()}
            if len(sources) > 1 or len(inside) == len(there):
                return None  # from several places, or the code itself is the package
            found.append(Need(path, sources.pop(), True, frozenset(inside.values())))
    return found


def _place(recipe: BuildRecipe, moving: Sequence[BuildStep], last: BuildStep, early: Sequence[Need]) -> str:
    blocks, below = split_blocks(recipe)
    places = [find_block(recipe, step) for step in moving]
    after = find_block(recipe, last)
    flags = [f"--{one.name}={one.value}" for one in moving[0].instruction.flags]
    targets: dict[str, list[str]] = {}
    for need in early:
        targets.setdefault(need.path if need.is_folder else posixpath.dirname(need.path), []).append(need.source)
    new = [
        Block((), (_draw_copy(flags, sources, "./" if target == moving[0].workdir else f"{target.rstrip('/')}/"),))
        for target, sources in targets.items()
    ]
    kept = [block for at, block in enumerate(blocks[: after + 1]) if at not in places]
    moved = [blocks[at] for at in places]
    return join_blocks([*kept[: places[0]], *new, *kept[places[0] :], *moved, *blocks[after + 1 :]], below)


def _draw_copy(flags: Sequence[str], sources: Sequence[str], target: str) -> str:
    words = [*sources, target]
    is_plain = all(re.fullmatch(r"[\w./-]+", word) for word in words)
    return " ".join(["COPY", *flags, *(words if is_plain else [json.dumps(words)])])


FIX = ImageFix(id="packages-first", title="install packages before the code is copied", rewrite=rewrite)
