"""A folder that is sent to a builder -> what .dockerignore admits of it, and which commits changed its files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from .errors import UsageError
from .findings import Skipped

WINDOW_DAYS = 90.0
LEAST_DAYS = 1.0
LIMIT_S = 60.0
MOST_COMMITS = 2000
NAMES = ("--no-merges", "--name-only", "--relative", "-z", "--format=%x01")
SAFE = (
    *("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "log.showSignature=false"),
    *("-c", "protocol.allow=never", "--no-pager"),
)
"""Keeps a repository's own settings from starting programs."""
ALONE = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}


@dataclass(frozen=True, slots=True)
class Ignore:
    """The patterns of a .dockerignore, in order: (regular expression of the path, whether it ignores)."""

    patterns: tuple[tuple[re.Pattern[str], bool], ...]

    @staticmethod
    def read(text: str) -> Ignore:
        """Patterns as docker reads them: ``!`` admits again, ``**`` is any number of folders, the last match counts.

        >>> ignore = Ignore.read("# data\\n/data/*\\n!data/keep\\n**/*.pyc\\n")
        >>> [ignore.ignores(path) for path in ("data/a/b", "data/keep/c", "x/y.pyc", "train.py")]
        [True, False, True, False]
        """
        found = []
        for line in text.removeprefix("\ufeff").splitlines():
            pattern = line.strip()
            if not pattern or line.startswith("#"):
                continue
            ignores = not pattern.startswith("!")
            pattern = os.path.normpath(pattern.removeprefix("!").strip()).strip("/")
            if pattern != ".":
                found.append((translate(pattern), ignores))
        return Ignore(tuple(found))

    def ignores(self, path: str) -> bool:
        """Whether the file, or a folder that contains it, is left out."""
        parts = path.split("/")
        names = ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
        for pattern, ignores in reversed(self.patterns):
            if any(pattern.fullmatch(name) for name in names):
                return ignores
        return False

    @property
    def may_admit_again(self) -> bool:
        return not all(ignores for _, ignores in self.patterns)


@lru_cache(maxsize=256)
def translate(pattern: str) -> re.Pattern[str]:
    """Go's path pattern as a regular expression."""
    text, at = "", 0
    while at < len(pattern):
        rest = pattern[at:]
        kind = re.match(r"\*\*/|\*\*|\*|\?|\[\^?[^\]]+\]|\\.", rest)
        sign = kind.group() if kind else rest[0]
        fixed = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
        is_class = sign.startswith("[") and len(sign) > 1
        text += fixed.get(sign) or (sign if is_class else re.escape(sign[-1] if sign.startswith("\\") else sign))
        at += len(sign)
    return re.compile(text, re.DOTALL)


def match_sources(sources: Iterable[str], files: Iterable[str]) -> dict[str, tuple[str, bool]]:
    """Files that a COPY takes -> (path below its destination, whether the source named it or a pattern of it).

    A folder contributes its content; a file keeps its own name.

    >>> match_sources(["src/", "*.txt"], ["src/a/b.py", "r.txt", "c"])
    {'src/a/b.py': ('a/b.py', False), 'r.txt': ('r.txt', True)}
    """
    patterns = [os.path.normpath(source.lstrip("/") or ".") for source in sources]
    found: dict[str, tuple[str, bool]] = {}
    for path in files:
        parts = path.split("/")
        for pattern in patterns:
            if pattern == ".":
                found[path] = (path, False)
                break
            depth = pattern.count("/") + 1
            if depth <= len(parts) and translate(pattern).fullmatch("/".join(parts[:depth])):
                found[path] = (parts[-1], True) if depth == len(parts) else ("/".join(parts[depth:]), False)
                break
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """The files of a folder by their path in it, with their sizes, and its ``folders``. ``ignored`` are the folders
    that git ignores; None if git does not know the folder."""

    root: Path
    files: Mapping[str, int]
    folders: tuple[str, ...] = ()
    ignored: frozenset[str] | None = None

    def admit(self, ignore: Ignore) -> dict[str, int]:
        """The files that the builder may see."""
        return {path: size for path, size in self.files.items() if not ignore.ignores(path)}


def scan_context(
    root: Path, ignore: Ignore, ignored: frozenset[str] | None = None, most_files: int | None = None
) -> BuildContext:
    """The files below ``root`` that the present .dockerignore admits; UsageError for more than ``most_files``."""
    files: dict[str, int] = {}
    admitted = []
    for folder, folders, names in os.walk(root):
        inside = os.path.relpath(folder, root)
        prefix = "" if inside == "." else f"{inside}/"
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = [
            name
            for name in folders
            if name not in links and (ignore.may_admit_again or not ignore.ignores(f"{prefix}{name}"))
        ]
        admitted += [path for path in (f"{prefix}{name}" for name in folders) if not ignore.ignores(path)]
        if most_files is not None and len(files) > most_files:
            raise UsageError(f"{root} holds more than {most_files:,} files")
        for name in (*names, *links):
            path = f"{prefix}{name}"
            if not ignore.ignores(path):
                files[path] = os.lstat(os.path.join(folder, name)).st_size
    return BuildContext(root=root, files=dict(sorted(files.items())), folders=tuple(admitted), ignored=ignored)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The commits of the last ``days`` (or the entire history if that is shorter), each with the files that it changed,
    as paths below the folder."""

    days: float
    commits: tuple[frozenset[str], ...]

    def count(self, is_such: Callable[[str], bool]) -> int:
        """Commits that changed such a file."""
        return sum(any(is_such(path) for path in commit) for commit in self.commits)

    def most_changed(self, paths: frozenset[str]) -> str | None:
        """The file among ``paths`` that most commits changed; the first by name if there are several, None if there is
        none."""
        counts = {path: sum(path in commit for commit in self.commits) for path in sorted(paths)}
        best = max(counts, key=counts.__getitem__, default=None)
        return best if best is not None and counts[best] else None


def read_history(folder: Path, limit_s: float = LIMIT_S) -> History | Skipped:
    """What git knows about the folder, or why it knows nothing; ``limit_s`` applies to each call of git."""
    if not shutil.which("git"):
        return Skipped(rule="git", reason="git is not installed")
    inside = _ask(folder, limit_s, "rev-parse", "--is-inside-work-tree", "--is-shallow-repository")
    if inside is None:
        return Skipped(rule="git", reason="the context is not in a git repository")
    if inside.split()[-1:] == ["true"]:
        return Skipped(rule="git", reason="the clone is shallow, so its history is cut; run: git fetch --unshallow")
    first = _ask(folder, limit_s, "log", "--reverse", "--format=%ct", "--max-parents=0")
    if not first:
        return Skipped(rule="git", reason="the repository has no commits")
    age_days = (time.time() - min(int(one) for one in first.split())) / 86_400
    days = max(LEAST_DAYS, min(WINDOW_DAYS, age_days))
    since = f"--since={int(time.time() - days * 86_400) - 1}"
    log = _ask(
        folder,
        limit_s,
        "log",
        since,
        "--no-merges",
        f"-n{MOST_COMMITS}",
        "--name-only",
        "--relative",
        "-z",
        "--format=%x01",
        "--",
        ".",
    )
    commits = tuple(
        frozenset(path.lstrip("\n") for path in one.split("\0") if path.strip("\n"))
        for one in (log or "").split("\x01")[1:]
    )
    return History(
        days=days,
        commits=commits,
    )


def list_ignored(folder: Path) -> frozenset[str]:
    """The folders that git ignores; empty if git does not know the folder."""
    ignored = _ask(folder, LIMIT_S, "ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z")
    return frozenset(one[:-1] for one in (ignored or "").split("\0") if one.endswith("/"))


def _ask(folder: Path, limit_s: float, *words: str) -> str | None:
    """The output of git; None if it refuses or takes too long."""
    try:
        given = subprocess.run(
            ["git", *SAFE, "-C", str(folder), *words],
            capture_output=True,
            check=False,
            timeout=limit_s,
            env={**os.environ, **ALONE},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return given.stdout.decode(errors="surrogateescape") if given.returncode == 0 else None
