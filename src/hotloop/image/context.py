"""A build context -> its files, what .dockerignore admits of them, and copies to build from."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hotloop.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Ignore:
    """The patterns of a .dockerignore, in order: (regular expression of the path, whether it ignores)."""

    patterns: tuple[tuple[re.Pattern[str], bool], ...]

    @staticmethod
    def read(text: str) -> Ignore:
        """Patterns as docker reads them: ``!`` admits again, ``**`` is any number of folders, the last match wins.

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
        """Whether the file, or a folder that holds it, is left out."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """The files of a folder by their path in it, with their sizes, and its ``folders``. ``ignored`` are folders that
    git is told to ignore; None where it does not know the folder."""

    root: Path
    files: Mapping[str, int]
    folders: tuple[str, ...] = ()
    ignored: frozenset[str] | None = None

    def admit(self, ignore: Ignore) -> dict[str, int]:
        """What the builder may see."""
        return {path: size for path, size in self.files.items() if not ignore.ignores(path)}


def scan_context(root: Path, ignore: Ignore, ignored: frozenset[str] | None) -> BuildContext:
    """The files below ``root`` that the present .dockerignore admits."""
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
        for name in (*names, *links):
            path = f"{prefix}{name}"
            if not ignore.ignores(path):
                files[path] = os.lstat(os.path.join(folder, name)).st_size
    return BuildContext(root=root, files=dict(sorted(files.items())), folders=tuple(admitted), ignored=ignored)


def copy_context(context: BuildContext, target: Path, least_free_bytes: int) -> None:
    """A copy with the modes and times of the files. Raises UsageError where the disk has too little room."""
    needed_bytes = sum(context.files.values())
    free_bytes = shutil.disk_usage(target.parent).free
    if needed_bytes + least_free_bytes > free_bytes:
        raise UsageError(
            f"the context has {needed_bytes / 1e9:.1f} GB, and {target.parent} has room for "
            f"{max(0, free_bytes - least_free_bytes) / 1e9:.1f} GB: leave folders out with .dockerignore, or give "
            "--work FOLDER on a larger disk"
        )
    folders = sorted({*context.folders, *(str(Path(path).parent) for path in context.files), "."})
    for folder in folders:
        (target / folder).mkdir(parents=True, exist_ok=True)
    for path in context.files:
        try:
            shutil.copy2(context.root / path, target / path, follow_symlinks=False)
        except OSError as error:
            raise UsageError(f"{context.root / path} cannot be copied: {error.strerror}") from error
    for folder in reversed(folders):
        shutil.copystat(context.root / folder, target / folder)


def match_sources(sources: Iterable[str], files: Iterable[str]) -> dict[str, tuple[str, bool]]:
    """Files that a COPY takes -> (path below its destination, whether the source named it or a pattern of it).

    A folder gives its content; a file comes under its own name.

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
