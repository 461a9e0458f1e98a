"""The folder that a command is started in -> a working copy for one trial, so that the user's files stay as they are.

Small files are copied, large ones are linked, checkpoints are copied or left out: a script may write over them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SMALL_BYTES = 1 << 20
MOST_COPIED_BYTES = 32 << 20
MOST_COPIED_FILES = 5_000
MOST_NEIGHBOURS = 1000
MOST_CHECKPOINT_BYTES = 256 << 20
CHECKPOINT_SUFFIXES = (".pt", ".pth", ".ckpt", ".safetensors")
CODE_SUFFIXES = (".py", ".toml", ".yaml", ".yml", ".json", ".cfg", ".ini", ".sh", ".ipynb")
LEFT_OUT = (".hotloop", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache")
LINKED = (".git", ".hg", "node_modules")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file or folder under the command's folder: what becomes of it is 'copy', 'link', 'folder' or 'leave out'."""

    path: str
    act: str
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a working copy holds, and what has to be said of it."""

    source: Path
    entries: tuple[Entry, ...]
    warnings: tuple[str, ...]
    code_hash: str


def plan_workspace(source: Path, *, without: Sequence[Path] = ()) -> Plan:
    """Look through ``source`` once; ``without`` are our own folders inside it."""
    skipped = {str(path.resolve()) for path in without}
    entries: list[Entry] = []
    warnings: list[str] = []
    digest = hashlib.sha256()
    copied_bytes = checkpoint_bytes = 0
    copied_count = 0
    for path, is_folder, size in _walk(source, skipped):
        relative = str(path.relative_to(source))
        suffix = path.suffix.lower()
        if is_folder is None:
            entries.append(Entry(path=relative, act="link"))
        elif is_folder:
            entries.append(Entry(path=relative, act="folder"))
        elif suffix in CHECKPOINT_SUFFIXES:
            checkpoint_bytes += size
            fits = checkpoint_bytes <= MOST_CHECKPOINT_BYTES
            entries.append(Entry(path=relative, act="copy" if fits else "leave out", size_bytes=size))
            if not fits:
                warnings.append(f"{relative} ({size >> 20} MiB) is not in the trials' working copy: it could be lost")
        elif size <= SMALL_BYTES and copied_bytes + size <= MOST_COPIED_BYTES and copied_count < MOST_COPIED_FILES:
            copied_bytes += size
            copied_count += 1
            entries.append(Entry(path=relative, act="copy", size_bytes=size))
            if suffix in CODE_SUFFIXES:
                digest.update(relative.encode() + b"\0" + _content(path) + b"\0")
        else:
            entries.append(Entry(path=relative, act="link", size_bytes=size))
    if copied_count >= MOST_COPIED_FILES or copied_bytes + SMALL_BYTES > MOST_COPIED_BYTES:
        warnings.append(
            f"{source} holds too much to be copied for every trial: the rest is linked, so that a script that writes "
            "over these files writes over yours"
        )
    return Plan(source=source, entries=tuple(entries), warnings=tuple(warnings), code_hash=digest.hexdigest())


def make_workspace(plan: Plan, target: Path) -> Path:
    """Build the working copy below ``target``, which must not exist; answers its path.

    It has the name of the user's folder and lies between links to that folder's neighbours, so that ``../data`` leads
    where it did.
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
            elif entry.act == "copy":
                shutil.copy2(source, place)
            elif entry.act == "link":
                place.symlink_to(source)
        except FileNotFoundError:
            continue  # it went away since the plan was made
    return target


def remove_workspace(copy: Path) -> None:
    """Remove a working copy, with the links around it; what they lead to stays."""
    shutil.rmtree(copy.parent, ignore_errors=True)


def _neighbours(source: Path) -> list[Path]:
    try:
        found = [Path(entry.path) for entry in os.scandir(source.parent) if entry.name != source.name]
    except OSError:
        return []
    return found if len(found) <= MOST_NEIGHBOURS else []


def written_outside(plan: Plan, since_wall_s: float) -> tuple[str, ...]:
    """Files of the user's own folder that were changed after a moment: a trial wrote past its working copy."""
    found = []
    for entry in plan.entries:
        if entry.act == "folder":
            continue
        try:
            changed_s = (plan.source / entry.path).stat().st_mtime
        except OSError:
            continue
        if changed_s >= since_wall_s:
            found.append(entry.path)
    return tuple(found[:20])


def _walk(source: Path, skipped: set[str]) -> Iterator[tuple[Path, bool | None, int]]:
    """Every path below, folders before what they hold; None in place of is_folder: to be linked as a whole."""
    waiting = [source]
    seen = 0
    while waiting:
        folder = waiting.pop()
        try:
            children = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        for child in children:
            path = Path(child.path)
            seen += 1
            if child.name in LEFT_OUT or os.path.realpath(child.path) in skipped:
                continue
            if child.is_symlink():
                yield path, None, 0
            elif child.is_dir():
                is_environment = (path / "pyvenv.cfg").exists()
                if child.name in LINKED or is_environment or seen > 4 * MOST_COPIED_FILES:
                    yield path, None, 0
                else:
                    yield path, True, 0
                    waiting.append(path)
            elif child.is_file():
                yield path, False, child.stat().st_size


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
