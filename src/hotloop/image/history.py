"""A folder's git history -> how often its files changed, for rebuilds a month."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hotloop.core.findings import Skipped

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
