"""The file that a scenario edits, how often it changes in git's history, and the edit: a line that changes only
bytes."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Container, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath

from hotloop.core.build_context import History
from hotloop.core.errors import UsageError
from hotloop.core.findings import Skipped
from hotloop.core.image import EditedFile

from .packages import find_needs, read_requirement_files
from .recipe import BuildRecipe

REQUIREMENTS = re.compile(r"(.*/)?(requirements[\w.-]*\.(txt|in)|environment\.ya?ml|pyproject\.toml|setup\.(py|cfg))$")
FIRST = ("train.py", "main.py", "run.py")
"""Names of a training's entry, for a folder without history."""
COMMENTED = frozenset((".py", ".sh", ".yaml", ".yml", ".toml", ".txt", ".in", ".cfg", ".ini"))


def choose_edits(
    recipe: BuildRecipe, history: History | Skipped, code: str | None, requirements: str | None
) -> dict[str, EditedFile]:
    """The files of the scenarios ``code`` and ``requirements``; a scenario whose file the image does not copy has no
    entry.

    Raises UsageError for a given file that no step copies.
    """
    copied = {path for step in recipe.steps for path in step.reads}
    for option, given in (("--edit", code), ("--requirements", requirements)):
        if given is not None and os.path.normpath(given) not in copied:
            raise UsageError(f"{option} {given}: no COPY in the Dockerfile uses this file; give a path in the context")
    lists = _find_lists(recipe, copied)
    found_list = os.path.normpath(requirements) if requirements else next(iter(lists), None)
    lists |= {found_list} if found_list else set()
    sources = frozenset(path for path in copied - lists if not path.startswith(".git/"))
    found_code = os.path.normpath(code) if code else _choose_code(sources, history)

    def count(paths: Container[str]) -> int | None:
        return history.count(paths.__contains__) if isinstance(history, History) else None

    edits: dict[str, EditedFile] = {}
    if found_code is not None:
        edits["code"] = EditedFile(path=found_code, commits_count=count(sources))
    if found_list is not None:
        edits["requirements"] = EditedFile(path=found_list, commits_count=count(lists))
    return edits


def _find_lists(recipe: BuildRecipe, copied: set[str]) -> set[str]:
    """Files that list packages: those that the installing steps read, else those with a usual name."""
    there: Mapping[str, str] = {path: source for step in recipe.steps for path, source in step.files.items()}
    read = partial(recipe.read_copied, there)
    found = set()
    for step in recipe.steps:
        needs = find_needs(step.instruction.script, step.workdir) if step.instruction.name == "RUN" else None
        for need in needs or ():
            found |= {there[one] for one in read_requirement_files(need, read) or ()}
    return found or {path for path in sorted(copied) if REQUIREMENTS.fullmatch(path)}


def _choose_code(sources: frozenset[str], history: History | Skipped) -> str | None:
    most = history.most_changed(sources) if isinstance(history, History) else None
    if most is not None:
        return most

    def rank(path: str) -> tuple[bool, bool, int, str]:
        name = PurePosixPath(path)
        return name.name not in FIRST, name.suffix != ".py", len(name.parts), path

    return min(sources, key=rank, default=None)


@contextlib.contextmanager
def edit_file(path: Path) -> Iterator[None]:
    """Inside, each ``bump`` of the file changes its bytes; afterward the file is as before, including its times."""
    before, facts = path.read_bytes(), path.stat()
    try:
        yield
    finally:
        path.write_bytes(before)
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def bump(path: Path, number: int) -> None:
    """Add a line: a comment if the file's kind has comments, else empty lines."""
    text = f"# {number}\n" if path.suffix in COMMENTED else "\n" * number
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\n{text}")
