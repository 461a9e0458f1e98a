"""A run folder on a node's own disk: which of its files are sent, and their blocks in an order that loses no row."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from hotloop.core.frames import decode_object

from .manifest import BLOCK_BYTES, MAX_FILE_BYTES, MAX_FILES, is_recorded_name

POINTER_SUFFIX = ".where"
_MAX_POINTER_BYTES = 1 << 16


def list_files(folder: Path) -> dict[str, Path]:
    """Name in the store -> path, recordings first. Recordings that still lie elsewhere on this machine are followed."""
    found: dict[str, Path] = {}
    for part in ("processes", "", "traces"):
        try:
            names = sorted(os.listdir(folder / part))
        except OSError:
            continue
        for name in names:
            path, sent = folder / part / name, f"{part}/{name}" if part else name
            if part == "processes" and name.endswith(".hlr" + POINTER_SUFFIX):
                path, sent = _follow(path), sent.removesuffix(POINTER_SUFFIX)
            if is_recorded_name(sent) and (sent not in found) and path.is_file() and len(found) < MAX_FILES:
                found[sent] = path
    return found


def read_blocks(path: Path) -> tuple[int, Iterator[tuple[int, bytes]]]:
    """Size in bytes, and (number, content) of each block: the first one, then from the last to the second.

    A recording's first block says how many rows there are. Rows are written from front to back, so whatever it counts
    lies in blocks that are read later, and rows written meanwhile at the end cannot make earlier ones look lost.
    Raises OSError, also for a file of more than MAX_FILE_BYTES.
    """
    file = path.open("rb")
    size_bytes = os.fstat(file.fileno()).st_size
    if size_bytes > MAX_FILE_BYTES:
        file.close()
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    def read() -> Iterator[tuple[int, bytes]]:
        count = math.ceil(size_bytes / BLOCK_BYTES)
        with file:
            for number in (*range(min(count, 1)), *range(count - 1, 0, -1)):
                file.seek(number * BLOCK_BYTES)
                wanted = min(BLOCK_BYTES, size_bytes - number * BLOCK_BYTES)
                yield number, file.read(wanted).ljust(wanted, b"\0")  # shorter only if it was truncated meanwhile

    return size_bytes, read()


def read_start(folder: Path) -> tuple[float, int]:
    """When the run in a folder began (seconds since 1970), and the pid of its ``hotloop run``; 0 where unknown."""
    try:
        manifest = decode_object((folder / "run.json").read_bytes()) or {}
    except OSError:
        manifest = {}
    began, pid = manifest.get("started_wall_s"), manifest.get("pid")
    return float(began) if isinstance(began, (int, float)) else 0.0, pid if isinstance(pid, int) and pid > 0 else 0


def read_last(folder: Path) -> float:
    """When a run's files were last written, in seconds since 1970; 0 without any."""
    times = [0.0]
    for path in list_files(folder).values():
        try:
            times.append(path.stat().st_mtime)
        except OSError:
            continue
    return max(times)


def describe_machine() -> str:
    """A name of this machine as far as its process ids reach: kernel boot and pid namespace."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/pid")
    except OSError:
        name = secrets.token_hex(16)  # nothing tells: no other node is taken for one of this machine
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def name_node(host: str) -> str:
    """A name for this node that no other has, even on a host of the same name."""
    return f"{re.sub(r'[^A-Za-z0-9-]', '-', host.partition('.')[0])[:40].strip('-') or 'node'}-{secrets.token_hex(4)}"


def write_json(path: Path, content: object) -> None:
    """Replace a file whole. Raises OSError."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content))
    part.replace(path)


def _follow(pointer: Path) -> Path:
    """What a pointer to a node's own disk names, as far as that is a recording; else a path that does not exist."""
    try:
        with pointer.open("rb") as file:
            target = (decode_object(file.read(_MAX_POINTER_BYTES)) or {}).get("path")
    except OSError:
        target = None
    return Path(target) if isinstance(target, str) and target.endswith(".hlr") else pointer.with_suffix(".absent")
