"""The folder that a command is started in -> a working copy for one trial, so that the user's files stay as they are.

Small files are copied, large ones are linked, checkpoints are copied or left out: a script may write over them. Code is
read once: every trial gets what was read then, and code that a trial reaches through a link is looked at again.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotloop.core.checkpoint_names import is_checkpoint_name
from hotloop.core.errors import HotloopError

SMALL_BYTES = 1 << 20
MOST_COPIED_BYTES = 32 << 20
MOST_COPIED_FILES = 5_000
MOST_NEIGHBOURS = 1000
MOST_SEEN = 20_000
"""Limit on files and folders that are examined; later folders are linked as a whole, unless they hold Python files."""
MOST_LISTED = 5_000
"""A folder that holds more is linked as a whole: it holds data."""
MOST_LISTED_LATE = 500
"""The same for folders after MOST_SEEN."""
MOST_CHECKPOINT_BYTES = 256 << 20
MOST_LOG_BYTES = 64 << 20
MOST_HASHED_BYTES = 128 << 20
"""Limit for code that is not copied; code beyond it is known by its size and the time of its last change."""
LOG_SUFFIXES = (".log", ".csv", ".jsonl", ".txt", ".json")
CODE_SUFFIXES = (".py", ".toml", ".yaml", ".yml", ".json", ".cfg", ".ini", ".sh", ".ipynb")
LEFT_OUT = (".hotloop", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache")
LINKED = (".git", ".hg", "node_modules")


class WorkspaceError(HotloopError):
    """A working copy cannot be made; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file or folder under the command's folder: what becomes of it is 'copy', 'link', 'folder' or 'leave out'."""

    path: str
    act: str
    size_bytes: int = 0
    content: bytes | None = None
    """The copied code: every trial gets this, whatever became of the file since."""
    mode: int = 0
    changed_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedFile:
    """Code that trials read in place. ``digest`` is empty where it is known by its stamp (size, time) alone."""

    path: Path
    stamp: tuple[int, int]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspacePlan:
    """The content of a working copy, with notes for the reader."""

    source: Path
    entries: tuple[Entry, ...]
    warnings: tuple[str, ...]
    watched: tuple[WatchedFile, ...] = ()


class _Allowance:
    """How much of one kind may still be copied."""

    def __init__(self, most_bytes: int, most_files: int = MOST_SEEN) -> None:
        self._bytes, self._files = most_bytes, most_files
        self.was_refused = False

    def take(self, size_bytes: int) -> bool:
        if size_bytes > self._bytes or self._files < 1:
            self.was_refused = True
            return False
        self._bytes -= size_bytes
        self._files -= 1
        return True


class _Planner:
    """The treatment of each file, with notes for the reader."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.watched: list[Path] = []
        self.unreadable: list[str] = []
        self.whole: list[str] = []
        self.warnings: list[str] = []
        self.small = _Allowance(MOST_COPIED_BYTES, MOST_COPIED_FILES)
        self._checkpoints = _Allowance(MOST_CHECKPOINT_BYTES)
        self._logs = _Allowance(MOST_LOG_BYTES)

    def plan(self, found: _Found) -> Entry:
        path = str(found.path.relative_to(self.source))
        if found.kind == "folder":
            return Entry(path=path, act="folder")
        if found.kind == "file":
            return self._plan_file(found, path)
        if found.kind == "whole":
            self.whole.append(path)
        elif _is_code(found.path) and os.path.isfile(found.path):
            self.watched.append(found.path)
        return Entry(path=path, act="link")

    def _plan_file(self, found: _Found, path: str) -> Entry:
        size = found.size_bytes
        link = Entry(path=path, act="link", size_bytes=size)
        copy = Entry(path=path, act="copy", size_bytes=size)
        if not os.access(found.path, os.R_OK):
            self.unreadable.append(path)
            return link
        if _is_checkpoint(found.path):
            if self._checkpoints.take(size):
                return copy
            self.warnings.append(
                f"{path} ({size >> 20} MiB) is not in the trials' working copy, so that it cannot be lost"
            )
            return Entry(path=path, act="leave out", size_bytes=size)
        if size <= SMALL_BYTES and self.small.take(size):
            return self._hold(found.path, path, link) if _is_code(found.path) else copy
        if _is_code(found.path):
            self.watched.append(found.path)
        is_log = found.path.suffix.lower() in LOG_SUFFIXES
        return copy if is_log and size > SMALL_BYTES and self._logs.take(size) else link

    def _hold(self, place: Path, path: str, link: Entry) -> Entry:
        """Code that is read now, for every trial."""
        try:
            status = place.stat()
            content = place.read_bytes()
        except OSError:
            self.unreadable.append(path)
            return link
        return Entry(
            path=path,
            act="copy",
            size_bytes=len(content),
            content=content,
            mode=status.st_mode & 0o7777,
            changed_ns=status.st_mtime_ns,
        )

    def collect_notes(self) -> tuple[str, ...]:
        notes = list(self.warnings)
        if self.small.was_refused:
            notes.append(
                f"{self.source} is too large to copy for every trial, so the rest is linked: a script that "
                "overwrites these files overwrites yours"
            )
        if self.whole:
            notes.append(
                "linked as entire folders, because they are too large or cannot be listed: "
                f"{_name_some(self.whole)}; trials that write there write into your folder"
            )
        if self.unreadable:
            notes.append(f"not copied for the trials because they cannot be read: {_name_some(self.unreadable)}")
        return tuple(notes)


def plan_workspace(source: Path, *, without: Sequence[Path] = (), outside: Sequence[Path] = ()) -> WorkspacePlan:
    """Look through ``source`` once; ``without`` are our own folders inside it, ``outside`` is code elsewhere."""
    planner = _Planner(source)
    found = _walk(source, {str(path.resolve()) for path in without})
    # What may be copied is for code first: a folder of pictures shall not use it up.
    entries = tuple(planner.plan(one) for one in sorted(found, key=_copied_in_turn))
    return WorkspacePlan(
        source=source,
        entries=entries,
        warnings=planner.collect_notes(),
        watched=watch([*planner.watched, *outside]),
    )


def watch(paths: Iterable[Path]) -> tuple[WatchedFile, ...]:
    """Code as it is now, to be looked at again; what cannot be read is left out."""
    hashed = _Allowance(MOST_HASHED_BYTES)
    found: dict[Path, WatchedFile] = {}
    for path in paths:
        stamp = _stamp_of(path)
        if stamp is not None and path not in found:
            found[path] = WatchedFile(path=path, stamp=stamp, digest=_digest_of(path) if hashed.take(stamp[0]) else "")
    return tuple(found.values())


def changed_code(plan: WorkspacePlan) -> tuple[WatchedFile, ...]:
    """Watched code that is another one than when the plan was made."""
    moved = [one for one in plan.watched if _stamp_of(one.path) != one.stamp]
    return tuple(one for one in moved if not one.digest or _digest_of(one.path) != one.digest)


def changed_files(plan: WorkspacePlan, names: Sequence[str]) -> tuple[str, ...]:
    """Files of the folder whose code is not what every trial got."""
    held = {entry.path: entry.content for entry in plan.entries if entry.content is not None}
    return tuple(name for name in names if name in held and not _has_content(plan.source / name, held[name]))


def _has_content(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except OSError:
        return False


def code_outside(command: Sequence[str], source: Path) -> tuple[Path, ...]:
    """Code outside the folder that the command names, and the Python files next to a script there.

    ``--config=../large.toml`` names a file too. Data and checkpoints are none: a training may write over them.
    """
    found: list[Path] = []
    inside = os.path.realpath(source) + os.sep
    for word in command:
        for text in (word, word.partition("=")[2]):
            path = Path(os.path.normpath(source / text))
            if not text or not os.path.isfile(path) or os.path.realpath(path).startswith(inside):
                continue
            if path.suffix == ".py":
                found += [path, *_scripts_beside(path)]
            elif _is_code(path) or os.access(path, os.X_OK):
                found.append(path)
    return tuple(dict.fromkeys(found))


def _scripts_beside(script: Path) -> list[Path]:
    """The modules that a script may import from its own folder."""
    names = _list_folder(script.parent, MOST_LISTED) or []
    return [Path(one.path) for one in names if one.name.endswith(".py") and os.path.isfile(one.path)]


def make_workspace(plan: WorkspacePlan, target: Path) -> Path:
    """Build the working copy below ``target``, which must not exist; returns its path.

    It has the name of the user's folder and sits between links to that folder's siblings, so that ``../data`` leads
    to the same place.
    """
    target.mkdir(parents=True)
    for neighbour in _neighbours(plan.source):
        (target / neighbour.name).symlink_to(neighbour)
    target = target / (plan.source.name or "root")
    target.mkdir()
    for entry in plan.entries:
        source, place = plan.source / entry.path, target / entry.path
        try:
            if entry.act == "folder":
                place.mkdir(exist_ok=True)
            elif entry.content is not None:
                _write_held(entry, entry.content, place)
            elif entry.act == "copy":
                shutil.copy2(source, place)
            elif entry.act == "link":
                place.symlink_to(source)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise WorkspaceError(f"no space left for a working copy of {plan.source} in {target}") from error
            continue  # it went away since the plan was made, or cannot be read any more
    return target


def _write_held(entry: Entry, content: bytes, place: Path) -> None:
    place.write_bytes(content)
    place.chmod(entry.mode)
    os.utime(place, ns=(entry.changed_ns, entry.changed_ns))


def own_place(workspace: Path, name: str) -> Path:
    """Where a file of a working copy may be written: every linked folder on the way becomes a folder of the copy.

    What such a folder holds is then linked, each for itself, so that nothing is written through a link.
    """
    place = workspace
    for part in Path(name).parent.parts:
        place = place / part
        if place.is_symlink():
            real = Path(os.path.realpath(place))
            place.unlink()
            place.mkdir()
            for child in os.scandir(real):
                (place / child.name).symlink_to(child.path)
    return workspace / name


def remove_workspace(copy: Path) -> None:
    """Remove a working copy, with the links around it; what they lead to stays."""
    shutil.rmtree(copy.parent, ignore_errors=True)


def _neighbours(source: Path) -> list[Path]:
    try:
        found = [Path(entry.path) for entry in os.scandir(source.parent) if entry.name != source.name]
    except OSError:
        return []
    return found if len(found) <= MOST_NEIGHBOURS else []


def written_outside(plan: WorkspacePlan, since_wall_s: float) -> tuple[str, ...]:
    """Files of the user's own folder that were changed after a moment: a trial wrote past its working copy.

    Not those that this process's own output is sent to.
    """
    found = []
    for entry in plan.entries:
        if entry.act == "folder":
            continue
        try:
            status = (plan.source / entry.path).stat()
        except OSError:
            continue
        if status.st_mtime >= since_wall_s and not any(_is_open_as(number, status) for number in (1, 2)):
            found.append(entry.path)
    return tuple(found[:20])


def _is_open_as(descriptor: int, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), status)
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class _Found:
    """A path below the folder; ``kind`` is 'file', 'folder', 'link', or 'whole': a folder to link as it is."""

    path: Path
    kind: str
    size_bytes: int = 0


def _walk(source: Path, skipped: set[str]) -> Iterator[_Found]:
    """Every path below, folders before what they hold, and shallow ones first: source is near the top, data deep."""
    waiting = deque([source])
    seen = 0
    while waiting:
        folder = waiting.popleft()
        most = None if folder == source else MOST_LISTED if seen <= MOST_SEEN else MOST_LISTED_LATE
        children = _list_folder(folder, most)
        if seen > MOST_SEEN and not any(child.name.endswith(".py") for child in children or ()):
            children = None
        if folder != source:
            yield _Found(folder, "whole" if children is None else "folder")
        for child in children or ():
            seen += 1
            if child.name in LEFT_OUT or os.path.realpath(child.path) in skipped:
                continue
            found = _look_at(child)
            if found is not None and found.kind == "folder":
                waiting.append(found.path)
            elif found is not None:
                yield found


def _look_at(child: os.DirEntry[str]) -> _Found | None:
    """None for what is neither file nor folder (a socket, a pipe), and for what went away."""
    path = Path(child.path)
    try:
        if child.is_symlink():
            return _Found(path, "link")
        if child.is_dir():
            is_environment = os.path.exists(path / "pyvenv.cfg")
            return _Found(path, "link" if child.name in LINKED or is_environment else "folder")
        return _Found(path, "file", child.stat().st_size) if child.is_file() else None
    except OSError:
        return None


def _list_folder(folder: Path, most: int | None) -> list[os.DirEntry[str]] | None:
    """The entries of a folder, by name; None where there are more than ``most`` or cannot be read."""
    try:
        with os.scandir(folder) as found:
            children = list(found if most is None else itertools.islice(found, most + 1))
    except OSError:
        return None
    return None if most is not None and len(children) > most else sorted(children, key=lambda child: child.name)


def _copied_in_turn(found: _Found) -> int:
    """Folders first, then code, then all else."""
    return 0 if found.kind == "folder" else 1 if _is_code(found.path) else 2


def _is_code(path: Path) -> bool:
    return path.suffix.lower() in CODE_SUFFIXES


def _is_checkpoint(path: Path) -> bool:
    return not _is_code(path) and is_checkpoint_name(path.name)


def _stamp_of(path: Path) -> tuple[int, int] | None:
    """Size and time of the last change; None where there is no such file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _digest_of(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def _name_some(names: Sequence[str]) -> str:
    """
    >>> _name_some(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
