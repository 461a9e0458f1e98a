"""Which file a scenario edits, how often git says that it changes, and the edit: a line that changes only the bytes."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from hotloop.core.errors import UsageError
from hotloop.core.findings import Skipped
from hotloop.core.image import EditedFile

from .packages import find_needs, read_requirement_files
from .recipe import BuildRecipe

WINDOW_DAYS = 90.0
LEAST_DAYS = 1.0
LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The commits of the last ``days`` (the whole history where it is shorter): each the files that it changed, as
    paths below the folder. ``ignored`` are the folders that git is told to ignore."""

    days: float
    commits: tuple[frozenset[str], ...]
    ignored: frozenset[str]

    def count(self, is_such: Callable[[str], bool]) -> int:
        """Commits that changed such a file."""
        return sum(any(is_such(path) for path in commit) for commit in self.commits)

    def most_changed(self, paths: frozenset[str]) -> str | None:
        """The file among ``paths`` that most commits changed; the first by name among equals, None without any."""
        counts = {path: sum(path in commit for commit in self.commits) for path in sorted(paths)}
        best = max(counts, key=counts.__getitem__, default=None)
        return best if best is not None and counts[best] else None


def read_history(folder: Path) -> History | Skipped:
    """What git knows of the folder, or why it knows nothing."""
    if not shutil.which("git"):
        return Skipped(rule="git", reason="git is not installed")
    inside = _ask(folder, "rev-parse", "--is-inside-work-tree", "--is-shallow-repository")
    if inside is None:
        return Skipped(rule="git", reason="the context is in no git repository")
    if inside.split()[-1:] == ["true"]:
        return Skipped(rule="git", reason="the clone is shallow, so its history is cut; run: git fetch --unshallow")
    first = _ask(folder, "log", "--reverse", "--format=%ct", "--max-parents=0")
    if not first:
        return Skipped(rule="git", reason="the repository has no commits")
    age_days = (time.time() - min(int(one) for one in first.split())) / 86_400
    days = max(LEAST_DAYS, min(WINDOW_DAYS, age_days))
    since = f"--since={int(time.time() - days * 86_400) - 1}"
    log = _ask(folder, "log", since, "--no-merges", "--name-only", "--relative", "-z", "--format=%x01", "--", ".")
    ignored = _ask(folder, "ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z")
    commits = tuple(
        frozenset(path.lstrip("\n") for path in one.split("\0") if path.strip("\n"))
        for one in (log or "").split("\x01")[1:]
    )
    return History(
        days=days,
        commits=commits,
        ignored=frozenset(one[:-1] for one in (ignored or "").split("\0") if one.endswith("/")),
    )


def _ask(folder: Path, *words: str) -> str | None:
    """What git answers, None where it refuses or takes too long."""
    try:
        given = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, check=False, timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return given.stdout.decode(errors="surrogateescape") if given.returncode == 0 else None


REQUIREMENTS = re.compile(r"(.*/)?(requirements[\w.-]*\.(txt|in)|environment\.ya?ml|pyproject\.toml|setup\.(py|cfg))$")
FIRST = ("train.py", "main.py", "run.py")
"""Names of a training's entry, for a folder without history."""
COMMENTED = frozenset((".py", ".sh", ".yaml", ".yml", ".toml", ".txt", ".in", ".cfg", ".ini"))


def choose_edits(
    recipe: BuildRecipe, history: History | Skipped, code: str | None, requirements: str | None
) -> dict[str, EditedFile]:
    """The files of the scenarios ``code`` and ``requirements``; one that the image does not take has no entry.

    Raises UsageError for a given file that no step copies.
    """
    copied = {path for step in recipe.steps for path in step.reads}
    for option, given in (("--edit", code), ("--requirements", requirements)):
        if given is not None and os.path.normpath(given) not in copied:
            raise UsageError(f"{option} {given}: no COPY of the Dockerfile takes this file; give a path in the context")
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
    """Files that name packages: what the installing steps read, else those whose name says so."""
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
    """Within, each ``bump`` of the file changes its bytes; afterwards it is as it was, its times too."""
    before, facts = path.read_bytes(), path.stat()
    try:
        yield
    finally:
        path.write_bytes(before)
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def bump(path: Path, number: int) -> None:
    """Add a line: a comment where the file's kind has them, else empty ones."""
    text = f"# {number}\n" if path.suffix in COMMENTED else "\n" * number
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\n{text}")
