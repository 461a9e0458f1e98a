"""A builder's command -> its output lines, within limits of time and disk, in a folder for its stores.

This process and every program it starts hold a lock on that folder. Ctrl-C removes the folder at once; after a ``kill
-9``, the next measurement finds the folder unlocked and removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotloop.core.errors import HotloopError, UsageError

LOCK = "lock"
PREFIX = "hotloop-image-"
MOUNTS = Path("/proc/self/mountinfo")


@contextlib.contextmanager
def open_workspace(parent: Path) -> Iterator[tuple[Path, int]]:
    """A new folder below ``parent`` and the descriptor of its lock, which children must inherit.

    Raises UsageError if no folder can be created.
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


def remove_abandoned(parent: Path) -> None:
    """Remove the leftovers of this user's interrupted measurements below ``parent``."""
    for root in sorted(parent.glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError):
            if root.lstat().st_uid == os.getuid() and root.is_dir() and not _is_held(root / LOCK):
                remove_tree(root)


def _is_held(lock: Path) -> bool:
    """Whether another process works in the folder; a folder without a lock was only just created."""
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
    """Unmount everything below ``root``, then remove it.

    Raises UsageError, and removes nothing, while anything is still mounted there: it may be another file system.
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


FULL = ("no space left on device", "disk quota exceeded")
LOOK_EVERY_S = 0.5
END_WITHIN_S = 10.0
KEPT_LINES = 20_000


class BuildFailed(HotloopError):
    """A build ended with an error; the text is the builder's last output."""


class LimitReached(HotloopError):
    """The measurement's time is over."""


@dataclass(frozen=True, slots=True)
class Output:
    """The output of a program, and how long it ran."""

    lines: tuple[str, ...]
    wall_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """``deadline_s`` is on the clock of time.monotonic; ``least_free_bytes`` must stay free on the disk of
    ``folder``."""

    deadline_s: float
    least_free_bytes: int
    folder: Path

    def check_time(self) -> None:
        """Raises LimitReached once the time is over."""
        if time.monotonic() > self.deadline_s:
            raise LimitReached("--limit-s is over")

    def check_disk(self) -> None:
        """Raises UsageError when the disk has reached its limit."""
        free_bytes = shutil.disk_usage(self.folder).free
        if free_bytes < self.least_free_bytes:
            raise _full(self.folder, f"{free_bytes / 1e9:.1f} GB are left")


def _full(folder: Path, what: str) -> UsageError:
    return UsageError(
        f"the builds need more disk space than they may use in {folder}: {what}; free some space, raise --limit-gb, "
        "or give "
        "--work FOLDER on a larger disk"
    )


def run_limited(
    words: Sequence[str], variables: Mapping[str, str], limits: Limits, *, lock: int | None = None
) -> Output:
    """Run a program in its own session, and end the whole session on any exception.

    Raises BuildFailed when it fails, LimitReached when the time is over, UsageError when the disk is full or the
    program is missing.
    """
    limits.check_time()
    limits.check_disk()
    began_ns = time.perf_counter_ns()
    try:
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(variables),
            start_new_session=True,
            pass_fds=() if lock is None else (lock,),
        )
    except OSError as error:
        raise UsageError(f"{words[0]} cannot be started: {error.strerror}") from error
    try:
        lines = _read_lines(child, limits)
        code = child.wait()
        wall_ns = time.perf_counter_ns() - began_ns
    finally:
        _end(child)
    if code:
        last = [line for line in lines if line.strip()][-3:]
        said = " / ".join(last) or f"exit code {code}"
        if any(sign in line.lower() for line in lines[-50:] for sign in FULL):
            raise _full(limits.folder, said)
        raise BuildFailed(said)
    return Output(tuple(lines), wall_ns)


def _read_lines(child: subprocess.Popen[bytes], limits: Limits) -> list[str]:
    assert child.stdout is not None
    found: list[str] = []
    rest = b""
    with selectors.DefaultSelector() as ready:
        ready.register(child.stdout, selectors.EVENT_READ)
        while True:
            if ready.select(LOOK_EVERY_S):
                data = os.read(child.stdout.fileno(), 1 << 16)
                if not data:
                    break
                *whole, rest = (rest + data).split(b"\n")
                found += [one.decode(errors="replace").rstrip("\r") for one in whole]
                del found[KEPT_LINES // 2 : -KEPT_LINES // 2]  # a build with endless output
            limits.check_time()
            limits.check_disk()
    if rest:
        found.append(rest.decode(errors="replace"))
    return found


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the rest of the program's session: with SIGTERM first, so that it can unmount its mounts."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(END_WITHIN_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdout is not None:
        child.stdout.close()
