"""Paths -> the files that a rule may read, each with its kind and text; an unreadable file has a reason."""

from __future__ import annotations

import io
import os
import re
import stat
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotloop.core.catalogue import Catalogue
from hotloop.core.errors import HotloopError, UsageError
from hotloop.core.lint import Unread

MOST_BYTES = 2 << 20
"""The limit for one file: files written by hand are far smaller."""
MOST_FILES = 50_000
SKIPPED_FOLDERS = frozenset(
    {"__pycache__", "node_modules", "site-packages", "dist-packages", "third_party", "testdata", "fixtures"}
)
_TEST = re.compile(r"(test_.*|.*_test|conftest)\.py$")
"""Tests take steps but are not trainings; a test file that the user names is read."""
_IGNORE = re.compile(r"#\s*hotloop:\s*ignore(?:\[([\w\s,-]*)\])?")


class NotRead(HotloopError):
    """A file does not match its name, or exceeds a limit; the text is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """``path`` is as given or found; ``data`` are its bytes, from which ``text`` was decoded. ``kind`` is the id of a
    LintFormat."""

    path: str
    kind: str
    data: bytes
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A job starts a script and warns it with a signal. ``is_asked``: the job's file itself requests that signal."""

    file: str
    line: int
    signal: str
    when: str
    is_asked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """``save_s`` is how long a checkpoint takes, if known; ``starts`` are by the path of the script, ``objects`` of
    Kubernetes by the folder and path of their file."""

    save_s: float | None = None
    starts: Mapping[str, Start] = field(default_factory=dict)
    objects: Mapping[str, Mapping[str, tuple[Any, ...]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFormat:
    """A format of files. ``title`` is a noun; ``may_name`` is whether a file of this name may have the format, and
    ``holds`` whether these bytes do; ``parse`` creates the rules' input, or returns None if the file is irrelevant.

    A file has the first format, by ``order`` and id, that accepts its name and its bytes. ``is_sure``: the name alone
    decides, so a file that cannot be read is reported.
    """

    id: str
    title: str
    may_name: Callable[[str], bool]
    parse: Callable[[SourceFile, Surroundings], Any]
    holds: Callable[[bytes], bool] = lambda data: True
    is_sure: bool = False
    order: int = 1


LINT_FORMATS: Catalogue[LintFormat] = Catalogue(LintFormat, "hotloop.judge.lint.formats")


def find_files(paths: Sequence[str]) -> Iterator[SourceFile | Unread]:
    """Every file under the paths that a rule may read, ordered by name; links, hidden folders and Python tests are
    skipped.

    Raises UsageError for a path that does not exist.
    """
    for path in paths:
        if not os.path.lexists(path):
            raise UsageError(
                f"{path}: no such file or folder; give the paths of scripts, or a folder that contains them"
            )
    count = 0
    for path in paths:
        found: Iterator[str | Unread] = _walk(path) if os.path.isdir(path) else iter((path,))
        for name in found:
            if isinstance(name, Unread):
                yield name
                continue
            read = _read(name, is_named=name == path)
            if read is None:
                continue
            count += 1
            if count > MOST_FILES:
                yield Unread(file=path, reason=f"only the first {MOST_FILES:,} files were read; lint smaller folders")
                return
            yield read


def _walk(root: str) -> Iterator[str | Unread]:
    failed: list[OSError] = []
    for folder, folders, names in os.walk(root, onerror=failed.append):
        folders[:] = sorted(name for name in folders if not _is_foreign(folder, name))
        for name in sorted(names):
            if not os.path.islink(os.path.join(folder, name)) and not _TEST.match(name):
                yield os.path.normpath(os.path.join(folder, name))
    yield from (Unread(file=str(one.filename), reason=one.strerror or "unreadable") for one in failed)


def _is_foreign(folder: str, name: str) -> bool:
    """Whether a folder has files that others wrote: hidden folders, installed packages, environments."""
    hidden = name.startswith(".") and name not in (".github", ".devcontainer")
    return hidden or name in SKIPPED_FOLDERS or os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))


def _read(path: str, *, is_named: bool) -> SourceFile | Unread | None:
    """None for a file that no rule reads; ``is_named``: the user named this file."""
    name = os.path.basename(path)
    formats = sorted(LINT_FORMATS.values(), key=lambda known: (known.order, known.id))
    named = [known for known in formats if known.may_name(name)]
    if not named and not is_named:
        return None
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return Unread(file=path, reason="not a regular file") if is_named else None
        if status.st_size > MOST_BYTES:
            reason = f"{status.st_size / 2**20:.0f} MiB; the limit is {MOST_BYTES >> 20} MiB"
            return Unread(file=path, reason=reason) if is_named or any(known.is_sure for known in named) else None
        data = Path(path).read_bytes()
    except OSError as error:
        return Unread(file=path, reason=error.strerror or "unreadable", failed=True)
    kind = next((known.id for known in named if known.holds(data)), None)
    if kind is None:
        known_titles = ", ".join(known.title for known in formats)
        return Unread(file=path, reason=f"not a file that lint reads ({known_titles})") if is_named else None
    try:
        text = data.decode(find_encoding(data) if kind == "python" else "utf-8-sig")
    except UnicodeDecodeError as error:
        return Unread(file=path, reason=f"not UTF-8 (byte {error.start})", failed=True)
    return SourceFile(path=path, kind=kind, data=data, text=text)


def find_encoding(data: bytes) -> str:
    """The encoding that the first lines of a Python file name; UTF-8 if they name none, or an unknown one."""
    try:
        named = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    except SyntaxError:
        return "utf-8-sig"
    return "utf-8-sig" if named == "utf-8" else named


def find_ignored(text: str) -> dict[int, frozenset[str] | None]:
    """Line -> the rules that ``# hotloop: ignore[id, id]`` turns off there; None turns off all.

    A comment on its own line applies to the next line that is not a comment.
    """
    found: dict[int, frozenset[str] | None] = {}
    if "hotloop:" not in text:
        return found
    lines = text.split("\n")
    for at, line in enumerate(lines):
        match = _IGNORE.search(line)
        if match is None:
            continue
        ids = match.group(1)
        rules = None if ids is None else frozenset(part.strip() for part in ids.split(",") if part.strip())
        about = at
        if line.lstrip().startswith("#"):
            about = next((n for n in range(at + 1, len(lines)) if not lines[n].lstrip().startswith("#")), at)
        before = found.get(about + 1, frozenset())
        found[about + 1] = None if rules is None or before is None else before | rules
    return found
