"""A proven recipe -> the user's Dockerfile and .dockerignore, if they still are what was built."""

from __future__ import annotations

from pathlib import Path

from hotloop.core.errors import UsageError
from hotloop.core.output_file import open_whole

from .recipe import BuildRecipe


def write_recipe(before: BuildRecipe, after: BuildRecipe, dockerfile: Path, ignore: Path) -> tuple[Path, ...]:
    """The files that were changed, each written whole.

    Raises UsageError, and writes nothing, where one is no longer what was measured.
    """
    pairs = ((dockerfile, before.text, after.text), (ignore, before.ignore_text, after.ignore_text))
    for path, old, _ in pairs:
        now = path.read_text(encoding="utf-8") if path.is_file() else ""
        if now != old:
            raise UsageError(f"{path} was changed during the measurement: nothing was written; measure again")
    changed = [(path, new) for path, old, new in pairs if new != old]
    for path, new in changed:
        try:
            with open_whole(path) as file:
                file.write(new.encode())
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from error
    return tuple(path for path, _ in changed)
