"""Fix: a change of a Dockerfile and its .dockerignore that should make builds faster. The fixes are under fixes/."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotloop.core.errors import UsageError
from hotloop.core.findings import Skipped
from hotloop.core.output_file import open_whole

from .recipe import BuildRecipe, BuildStep


def write_recipe(before: BuildRecipe, after: BuildRecipe, dockerfile: Path, ignore: Path) -> tuple[Path, ...]:
    """The files that were changed, each written in full.

    Raises UsageError, and writes nothing, if a file has changed since the measurement.
    """
    pairs = ((dockerfile, before.text, after.text), (ignore, before.ignore_text, after.ignore_text))
    for path, old, _ in pairs:
        now = path.read_text(encoding="utf-8") if path.is_file() else ""
        if now != old:
            raise UsageError(f"{path} changed during the measurement: nothing was written; measure again")
    changed = [(path, new) for path, old, new in pairs if new != old]
    for path, new in changed:
        try:
            with open_whole(path) as file:
                file.write(new.encode())
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from error
    return tuple(path for path, _ in changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """The changed recipe. ``caches`` are folders of the image that the change leaves empty: they have no content."""

    recipe: BuildRecipe
    caches: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFix:
    """``rewrite`` is a pure function: the changed recipe, or the reason why the change does not apply to it."""

    id: str
    title: str
    rewrite: Callable[[BuildRecipe], Rewrite | Skipped]


@dataclass(frozen=True, slots=True)
class Block:
    """The lines of one instruction, after the comments and empty lines above it."""

    above: tuple[str, ...]
    lines: tuple[str, ...]


def split_blocks(recipe: BuildRecipe) -> tuple[list[Block], list[str]]:
    """The file as one block per instruction, and the rest after the last."""
    lines = recipe.text.split("\n")
    blocks, at = [], 0
    for one in recipe.dockerfile.instructions:
        first = one.first_line - 1
        blocks.append(Block(tuple(lines[at:first]), tuple(lines[first : one.last_line])))
        at = one.last_line
    return blocks, lines[at:]


def join_blocks(blocks: Sequence[Block], below: Sequence[str]) -> str:
    return "\n".join([*(line for block in blocks for line in (*block.above, *block.lines)), *below])


def find_block(recipe: BuildRecipe, step: BuildStep) -> int:
    """The index of a step's block."""
    return recipe.dockerfile.instructions.index(step.instruction)


def draw_diff(before: BuildRecipe, after: BuildRecipe, dockerfile: str, dockerignore: str) -> str:
    """Both files' changes as one patch (for patch -p1), by the names given."""
    pairs = ((before.text, after.text, dockerfile), (before.ignore_text, after.ignore_text, dockerignore))
    text = ""
    for old, new, name in pairs:
        lines = difflib.unified_diff(
            old.splitlines(keepends=True),
            new.splitlines(keepends=True),
            f"a/{name}" if old else "/dev/null",
            f"b/{name}",
        )
        text += "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return text
