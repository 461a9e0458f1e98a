"""A folder for contexts, stores and caches of one measurement, which no interruption leaves behind for long.

A lock is held on it by this process and by every program it starts. Ctrl-C removes the folder at once; after a
``kill -9`` the next measurement finds it without a holder and removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hotloop.core.errors import UsageError

LOCK = "lock"
PREFIX = "hotloop-image-"
MOUNTS = Path("/proc/self/mountinfo")


@contextlib.contextmanager
def open_workspace(parent: Path) -> Iterator[tuple[Path, int]]:
    """A new folder below ``parent`` and the descriptor of its lock, which children have to inherit.

    Raises UsageError where no folder can be made.
    """
    try:
        root = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    except OSError as error:
        raise UsageError(f"cannot work in {parent}: {error.strerror}; give --work FOLDER") from error
    lock = os.open(root / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield root, lock
    finally:
        os.close(lock)
        remove_tree(root)


def remove_abandoned(parent: Path) -> int:
    """Remove what interrupted measurements of this user left below ``parent``, and count it."""
    removed_count = 0
    for root in sorted(parent.glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError):
            if root.lstat().st_uid == os.getuid() and root.is_dir() and not _is_held(root / LOCK):
                remove_tree(root)
                removed_count += not root.exists()
    return removed_count


def _is_held(lock: Path) -> bool:
    """Whether another process works in the folder; one without a lock has only just been made."""
    try:
        descriptor = os.open(lock, os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def remove_tree(root: Path) -> None:
    """Unmount what is mounted below ``root``, then remove it.

    Raises UsageError, and removes nothing, while something stays mounted there: it may be another file system.
    """
    for mount in sorted(_list_mounts(root), key=len, reverse=True):
        subprocess.run(["umount", "--lazy", mount], capture_output=True, check=False)
    mounts = _list_mounts(root)
    if mounts:
        raise UsageError(f"{mounts[0]} cannot be unmounted; unmount it and remove {root}")
    shutil.rmtree(root, ignore_errors=True)
    if root.exists() and shutil.which("buildah"):  # files of other users of a rootless store
        subprocess.run(["buildah", "unshare", "rm", "-rf", str(root)], capture_output=True, check=False)


def _list_mounts(root: Path) -> list[str]:
    if not MOUNTS.exists():
        return []
    lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    points = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    return [one for one in points if one.startswith(f"{root.resolve()}/")]
