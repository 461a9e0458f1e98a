"""install-once: drop the first of two installations of a package if the second replaces it."""

from __future__ import annotations

import re

from hotloop.ahead.image.fix import ImageFix, Rewrite, find_block, join_blocks, split_blocks
from hotloop.ahead.image.packages import VALUES, read_pip, split_commands
from hotloop.ahead.image.recipe import BuildRecipe
from hotloop.core.findings import Skipped


def rewrite(recipe: BuildRecipe) -> Rewrite | Skipped:
    """Removes each RUN whose pip installs by name only packages that a later step of the build replaced."""
    if recipe.replaced is None:
        return Skipped(reason="known only after the file has been built")
    if not recipe.replaced:
        return Skipped(reason="no pip step replaced a package that another step had installed")
    dropped = []
    for step in recipe.steps:
        names = _read_names(step.instruction.script) if step.instruction.name == "RUN" else None
        if names and names <= recipe.replaced:
            dropped.append(step)
    if not dropped:
        return Skipped(
            reason=f"{', '.join(sorted(recipe.replaced))} is installed with others in its step; pin one version"
        )
    blocks, below = split_blocks(recipe)
    places = {find_block(recipe, step) for step in dropped}
    left = [block for at, block in enumerate(blocks) if at not in places]
    return Rewrite(recipe=recipe.with_texts(text=join_blocks(left, below)))


def _read_names(script: str) -> frozenset[str] | None:
    """The packages of a script that is one ``pip install`` of names; None for any other."""
    commands = split_commands(script)
    words = read_pip(commands[0]) if commands is not None and len(commands) == 1 else None
    if words is None:
        return None
    names, given = set(), iter(words)
    for word in given:
        if word in VALUES:
            next(given, "")
        elif word.startswith(("-r", "-c", "-e", "--requirement", "--constraint", "--editable")) or "/" in word:
            if not word.startswith("--"):
                return None
        elif not word.startswith("-"):
            names.add(canonical_name(re.split(r"[\[<>=!~; @]", word)[0]))
    return frozenset(names)


def canonical_name(name: str) -> str:
    """A package's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


FIX = ImageFix(id="install-once", title="drop an installation that a later installation replaces", rewrite=rewrite)
