"""This machine -> Host: what the checks judge, read from /proc, /sys, the environment and the machine probe.

Files are read below ``root``, so that a folder can represent a machine. Nothing is written.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    data_folder: str | None = None
    """Where the training's data is, as an absolute path."""

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
    interpreter: str | None, environment: Mapping[str, str], *, data_folder: str | None = None, root: Path = Path("/")
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
        data_folder=data_folder,
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
