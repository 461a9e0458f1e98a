"""This machine -> Host: what the checks judge, read from /proc, /sys, the environment, the machine probe and a folder.

Files are read below ``root``, so that a folder can represent a machine. Of a data folder a sample is read within a
second: the page cache is asked to drop what is about to be read, and asked afterwards whether it did, so that a speed
that comes out of memory is never called the storage's. Nothing is written.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hotloop.core.children import started
from hotloop.core.machine import read_quota_cores

PROGRAM = Path(__file__).resolve().parent.parent / "probe" / "machine.py"
TIMEOUT_S = 90.0
"""Importing torch from a cold network file system takes up to a minute."""
TOOL_TIMEOUT_S = 10.0
MOST_FILE_BYTES = 1 << 20
GIB = 1 << 30
NEVER_PASSED_ON = ("HOTLOOP_ATTACH",)

GPU_FIELDS = ("index", "name", "memory.total", "memory.used", "pcie.link.width.current", "pcie.link.width.max")


@dataclass(slots=True, kw_only=True)
class Reading:
    """The reading of a data folder, within a second; a thread fills it until it is done or given up.

    Bytes and their times are counted by kind: ``storage`` where the pages had left the page cache, ``cached`` where
    they could not be dropped, ``unknown`` where the kernel does not say.
    """

    folder: str
    sampled_count: int = 0
    bytes_by_kind: Counter[str] = field(default_factory=Counter)
    ns_by_kind: Counter[str] = field(default_factory=Counter)
    opens_ns: list[int] = field(default_factory=list)
    complaint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine as a training would find it. ``facts`` is the probe's result, empty when there is none."""

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=dict)
    interpreter: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    complaint: str | None = None
    """Why the probe gave no result."""
    affinity_count: int | None = None
    files_soft_count: int | None = None
    files_hard_count: int | None = None
    locked_soft_bytes: int | None = None
    """How much memory may be locked; -1 without a limit."""
    shm_total_bytes: int | None = None
    shm_free_bytes: int | None = None
    gpus: tuple[Mapping[str, str], ...] | None = None
    """One mapping of GPU_FIELDS per GPU, from nvidia-smi; None where it did not respond."""
    gpu_links: str | None = None
    """The matrix of ``nvidia-smi topo -m``."""
    reading: Reading | None = None

    @property
    def place(self) -> str:
        """The root as functions of core/machine.py take it."""
        return str(self.root).rstrip("/")

    def read(self, path: str) -> str | None:
        """The text of a file below the root, stripped; None when it cannot be read."""
        try:
            with open(self.root / path, encoding="utf-8", errors="replace") as file:
                return file.read(MOST_FILE_BYTES).strip()
        except OSError:
            return None

    def names(self, path: str) -> tuple[str, ...]:
        """Names in a folder below the root, sorted; none when it cannot be read."""
        try:
            return tuple(sorted(os.listdir(self.root / path)))
        except OSError:
            return ()

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def fact(self, *keys: str) -> Any:
        """A fact of the probe by its keys, or None."""
        value: Any = self.facts
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def number(self, *keys: str) -> float | None:
        """A fact that is a finite number, else None."""
        value = self.fact(*keys)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
            return None
        return value

    @property
    def has_torch(self) -> bool:
        return isinstance(self.fact("torch"), Mapping)

    @property
    def quota_cores(self) -> float | None:
        """The smallest CPU quota of our cgroup and its parents in cores; None without one."""
        return read_quota_cores(self.place)

    @property
    def cores_count(self) -> int | None:
        """min(affinity, cgroup quota), at least 1."""
        if self.affinity_count is None:
            return None
        quota = self.quota_cores
        return max(1, min(self.affinity_count, int(quota + 0.5) if quota else self.affinity_count))

    @property
    def devices_count(self) -> int | None:
        """Accelerators that torch can use; None without a result from torch."""
        devices = self.fact("accelerator", "devices")
        return len(devices) if isinstance(devices, list) else None


def examine_host(
    interpreter: str | None, environment: Mapping[str, str], *, reading: Reading | None = None, root: Path = Path("/")
) -> Host:
    """Ask the training's interpreter, the kernel and nvidia-smi; nothing here fails, and what is unknown is None."""
    facts: Mapping[str, Any] = {}
    complaint: str | None = "no python was found on PATH; give the Python used for training with --python"
    if interpreter is not None:
        facts, complaint = ask_probe(interpreter, environment)
    soft, hard, locked = _limits()
    total, free = _shared_memory(root / "dev/shm")
    smi = shutil.which("nvidia-smi", path=environment.get("PATH"))
    return Host(
        root=root,
        environment=environment,
        interpreter=interpreter,
        facts=facts,
        complaint=complaint,
        affinity_count=len(os.sched_getaffinity(0)),
        files_soft_count=soft,
        files_hard_count=hard,
        locked_soft_bytes=locked,
        shm_total_bytes=total,
        shm_free_bytes=free,
        gpus=parse_gpus(_ask_tool(smi, f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits")),
        gpu_links=_ask_tool(smi, "topo", "-m"),
        reading=reading,
    )


def ask_probe(
    interpreter: str, environment: Mapping[str, str], *, program: Path = PROGRAM, timeout_s: float = TIMEOUT_S
) -> tuple[Mapping[str, Any], str | None]:
    """The probe's facts and None, or no facts and one line that says why there are none."""
    kept = {k: v for k, v in environment.items() if k not in NEVER_PASSED_ON}
    try:
        with started([interpreter, str(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=kept) as child:
            answer, complaint = (text.decode(errors="replace") for text in child.communicate(timeout=timeout_s))
    except (OSError, ValueError) as error:
        return {}, f"{interpreter} could not be started: {getattr(error, 'strerror', None) or error}"
    except subprocess.TimeoutExpired:
        return {}, f"importing torch with {interpreter} took longer than {timeout_s:.0f} s"
    with contextlib.suppress(ValueError, IndexError):
        facts = json.loads(answer.splitlines()[-1])
        if isinstance(facts, dict) and str(facts.get("schema", "")).startswith("hotloop.machine/"):
            return facts, None
    code = child.returncode
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        return {}, f"{interpreter} was killed by {name} while importing torch"
    last = next((line.strip() for line in reversed(complaint.splitlines()) if line.strip()), "it printed nothing")
    return {}, f"{interpreter} could not be queried (exit code {code}): {last[:200]}"


def _ask_tool(tool: str | None, *words: str) -> str | None:
    """The output of a tool; None when there is none, or when it fails or hangs."""
    if tool is None:
        return None
    try:
        done = subprocess.run(
            [tool, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=TOOL_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def parse_gpus(text: str | None) -> tuple[Mapping[str, str], ...] | None:
    """Lines of nvidia-smi's CSV as mappings by field; None without text."""
    if text is None:
        return None
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    return tuple(dict(zip(GPU_FIELDS, row, strict=True)) for row in rows if len(row) == len(GPU_FIELDS))


def file_system_of(host: Host, folder: str) -> str | None:
    """Type of the file system that holds an absolute path, such as ext4, nfs4 or overlay; None when unknown."""
    best, kind = -1, None
    for line in (host.read("proc/self/mountinfo") or "").splitlines():
        before, separator, after = line.partition(" - ")
        words = before.split()
        if not separator or len(words) < 5 or not after.split():
            continue
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), words[4])
        inside = folder == point or folder.startswith(point.rstrip("/") + "/")
        # Of two mounts on one point the later one hides the earlier.
        if inside and len(point) >= best:
            best, kind = len(point), after.split()[0]
    return kind


def format_bytes(value_bytes: float) -> str:
    """Bytes in binary units.

    >>> format_bytes(512), format_bytes(64 * 2**20), format_bytes(1.5 * 2**30)
    ('512 B', '64 MiB', '1.5 GiB')
    """
    size = float(value_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if size >= 9.95 or size == int(size) else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def plural(count: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "core"), plural(2, "core")
    ('1 core', '2 cores')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(words: Sequence[str], most: int = 4) -> str:
    """Words with commas, the rest counted.

    >>> listed(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    rest = len(words) - most
    return ", ".join(words[:most]) + (f" and {rest} more" if rest > 0 else "")


def _limits() -> tuple[int, int, int]:
    """Open files, softly and hard; bytes that may be locked, -1 without a limit."""
    soft, hard = (1 << 30 if n == resource.RLIM_INFINITY else n for n in resource.getrlimit(resource.RLIMIT_NOFILE))
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return soft, hard, -1 if locked == resource.RLIM_INFINITY else locked


def _shared_memory(folder: Path) -> tuple[int | None, int | None]:
    try:
        room = os.statvfs(folder)
    except OSError:
        return None, None
    return room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize


BUDGET_S = 1.0
WALK_S = 0.25
PATIENCE_S = 4.0
"""A read that hangs (a network file system without its server) is given up after this long."""
MOST_BYTES = 256 << 20
CHUNK_BYTES = 1 << 20
MOST_FILES = 4096
SAMPLED_FILES = 64


def read_folder(folder: str, *, budget_s: float = BUDGET_S, most_bytes: int = MOST_BYTES) -> Reading:
    """Read a sample of the folder's files. Trouble is reported in ``complaint``; nothing is raised for it."""
    reading = Reading(folder=folder)
    worker = threading.Thread(target=_read_sample, args=(reading, budget_s, most_bytes), daemon=True)
    worker.start()
    patience_s = max(PATIENCE_S, 2 * budget_s)
    worker.join(patience_s)
    if worker.is_alive():
        return replace(reading, complaint=f"a read did not finish within {patience_s:.0f} s")
    return reading


def _read_sample(reading: Reading, budget_s: float, most_bytes: int) -> None:
    start_s = time.monotonic()
    try:
        found = _find_files(reading.folder, start_s + min(WALK_S, budget_s / 3))
        step = max(1, len(found) // SAMPLED_FILES)
        sample = sorted(found[::step][:SAMPLED_FILES])
        left = most_bytes
        # Smallest first: what they leave of their shares goes to the larger ones.
        for position, (_, path) in enumerate(sample):
            if left <= 0 or time.monotonic() - start_s >= budget_s:
                break
            share = left // (len(sample) - position)
            left -= _read_file(path, max(1, share), start_s + budget_s, reading)
    except OSError as error:
        reading.complaint = f"{reading.folder}: {error.strerror}"


def _find_files(folder: str, deadline_s: float) -> list[tuple[int, str]]:
    """Size in bytes and path of regular files that hold something, links not followed."""
    found: list[tuple[int, str]] = []
    os.scandir(folder).close()  # it has to be readable; folders in it that are not are left out
    for here, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(here, name)
            facts = os.lstat(path)
            if stat.S_ISREG(facts.st_mode) and facts.st_size:
                found.append((facts.st_size, path))
            if len(found) >= MOST_FILES or time.monotonic() >= deadline_s:
                return found
    return found


def _read_file(path: str, most_bytes: int, deadline_s: float, reading: Reading) -> int:
    """Read part of one file; the bytes read. A file that cannot be read is left out of the sample."""
    start_ns = time.perf_counter_ns()
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError as error:
        reading.complaint = reading.complaint or f"{path}: {error.strerror}"
        return 0
    try:
        reading.opens_ns.append(time.perf_counter_ns() - start_ns)
        reading.sampled_count += 1
        size = os.fstat(file).st_size
        # The middle of a large file: its beginning is what everybody has looked at already.
        begin = max(0, (size - most_bytes) // 2) // mmap.PAGESIZE * mmap.PAGESIZE
        length = min(size - begin, most_bytes)
        os.posix_fadvise(file, begin, length, os.POSIX_FADV_DONTNEED)
        kind = _find_kind(file, begin)
        done = 0
        while done < length and time.monotonic() < deadline_s:
            start_ns = time.perf_counter_ns()
            got = len(os.pread(file, min(CHUNK_BYTES, length - done), begin + done))
            reading.ns_by_kind[kind] += time.perf_counter_ns() - start_ns
            reading.bytes_by_kind[kind] += got
            if not got:
                break
            done += got
        return done
    except OSError as error:
        reading.complaint = reading.complaint or f"{path}: {error.strerror}"
        return 0
    finally:
        os.close(file)


def _find_kind(file: int, begin: int) -> str:
    """Whether a read from here comes out of the page cache: only then does a read that may not wait give anything."""
    try:
        os.preadv(file, [bytearray(1)], begin, os.RWF_NOWAIT)
    except BlockingIOError:
        return "storage"
    except OSError:  # this file system does not tell
        return "unknown"
    return "cached"
