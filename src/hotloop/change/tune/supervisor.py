"""A request on standard input -> one command run to its end, its stop or its limit, and nothing of it left running.

Started by path with the standard library alone, between tune and a trial. It leads a session of its own, and ends every
process of the trial when the trial is over, when a limit is reached, and when tune is gone (its end of the pipe closes,
also by kill -9). Processes that left the session are known by a mark in their environment and by their ancestry:
orphans become children of this process (PR_SET_CHILD_SUBREAPER).
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MARK = "HOTLOOP_TRIAL"
CORES_FILE = "cores.json"
_PR_SET_CHILD_SUBREAPER = 36
_TICK_S = 0.1
# Between two looks for the moment of an interruption, and when it is near.
_LOOK_S, _NEAR_S = 0.02, 0.002
_SAMPLE_S = 0.25
_MOST_SAMPLES = 2_000
_PATIENCE_S = 10.0
_SETTLE_S = 8.0
"""How long the other ranks and the launcher may take once the first process has stopped as requested."""


def main() -> int:
    request = json.loads(sys.stdin.buffer.readline())
    for name in ("SIGINT", "SIGHUP", "SIGQUIT"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        answer = _run(request)
    finally:
        end_processes(request["mark"])
    try:
        os.write(1, json.dumps(answer).encode() + b"\n")
    except BrokenPipeError:  # tune was killed: nobody reads the result
        return 1
    return 0


def _leave(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)


def _run(request: dict[str, Any]) -> dict[str, Any]:
    """How the command ended: exited, stopped (as asked, after enough steps), timeout, hang, memory or abandoned."""
    folder = Path(request["folder"])
    started_s = time.monotonic()
    with open(folder / "stdout.log", "wb") as out, open(folder / "stderr.log", "wb") as err:
        try:
            child = subprocess.Popen(
                request["command"],
                cwd=request["cwd"],
                env={**request["environment"], MARK: request["mark"]},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=_prepare_child,
            )
        except OSError as error:
            return {"how": "not started", "detail": f"{request['command'][0]}: {error.strerror}", "duration_s": 0.0}
    cores = Cores()
    interruption = Interruption(request, folder, child.pid) if "interruption" in request else None
    how, detail = _watch(child, request, folder, started_s, cores, interruption)
    ended_ns = time.monotonic_ns()
    cores.sample(now=True)
    (folder / CORES_FILE).write_text(json.dumps(cores.to_mapping()))
    if how != "exited":
        end_processes(request["mark"])
    try:
        code = child.wait(timeout=10)
    except subprocess.TimeoutExpired:
        code = None
    return {
        "how": how,
        "detail": detail,
        "exit_code": code if how == "exited" and code is not None and code >= 0 else None,
        "signal": -code if how == "exited" and code is not None and code < 0 else None,
        "duration_s": time.monotonic() - started_s,
        "began_ns": round(started_s * 1e9),
        "sent_ns": None if interruption is None else interruption.sent_ns,
        "ended_ns": ended_ns,
    }


class Interruption:
    """``request["interruption"]``: a signal ``delay_s`` after the ``count``-th line of a ``kind`` in the lines that
    observe/rehearsal.py writes ("start": after the start), then at most ``grace_s`` to end. ``number`` is None for no
    signal; ``everyone`` gets it, or the first process alone. The command is ended after ``most_steps``, if given.
    """

    def __init__(self, request: dict[str, Any], folder: Path, pid: int) -> None:
        self._wanted, self._mark = request["interruption"], request["mark"]
        self._folder, self._pid = folder, pid
        self._times: dict[str, dict[bytes, list[int]]] = {}
        self._read: dict[str, int] = {}
        self._began_ns = time.monotonic_ns()
        self.sent_ns: int | None = None
        self.wait_s = _LOOK_S

    def look(self) -> tuple[str, str] | None:
        """Send the signal when its moment has come; returns how to end the command, if it has to end."""
        wanted, now_ns = self._wanted, time.monotonic_ns()
        if self.sent_ns is not None:
            is_late = now_ns - self.sent_ns > wanted["grace_s"] * 1e9
            return ("overdue", f"still running {wanted['grace_s']:g} s after the signal") if is_late else None
        self._read_lines()
        if wanted["number"] is not None:
            since_ns = self._began_ns if wanted["kind"] == "start" else self._find(wanted["kind"], wanted["count"])
            # What is held waits for us.
            is_near = wanted["kind"] != "held" and self._find(wanted["kind"], wanted["count"] - 1) is not None
            self.wait_s = _NEAR_S if is_near else _LOOK_S
            if since_ns is not None and now_ns >= since_ns + wanted["delay_s"] * 1e9:
                self._send(wanted["number"], wanted["everyone"])
        most = wanted["most_steps"]
        return None if most is None or self._find("row", most) is None else ("stopped", f"{most} steps were done")

    def _send(self, number: int, everyone: bool) -> None:
        pids = [self._pid, *find_processes(self._mark)] if everyone else [self._pid]
        self.sent_ns = time.monotonic_ns()
        for pid in dict.fromkeys(pids):
            try:
                os.kill(pid, number)
            except (ProcessLookupError, PermissionError):
                continue
        (self._folder / "sent").touch()

    def _find(self, kind: str, count: int) -> int | None:
        """When a process wrote its line of that number first; 0 before the first."""
        if count < 1:
            return 0
        reached = [
            times[kind.encode()][count - 1]
            for times in self._times.values()
            if len(times.get(kind.encode(), ())) >= count
        ]
        return min(reached, default=None)

    def _read_lines(self) -> None:
        for name in os.listdir(self._folder):
            if not name.startswith("marks-"):
                continue
            with open(self._folder / name, "rb") as file:
                file.seek(self._read.get(name, 0))
                lines = file.read().splitlines(keepends=True)
            times = self._times.setdefault(name, {})
            for line in lines:
                if line.endswith(b"\n"):
                    self._read[name] = self._read.get(name, 0) + len(line)
                    words = line.split(None, 2)
                    times.setdefault(words[1], []).append(int(words[0]))


def _prepare_child() -> None:
    for name in ("SIGINT", "SIGHUP", "SIGQUIT", "SIGTERM"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:  # when memory runs out, the kernel shall end the trial and not something of the user's
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("900")
    except OSError:
        return


class Cores:
    """Samples of who used the cores that we may run on, in seconds: wall clock, busy time, total time, ours, stolen.

    Ours is what every process below this one used, the ended ones included. What is busy and not ours, others used (the
    hypervisor's steal is theirs too).
    """

    def __init__(self) -> None:
        self.samples: list[tuple[float, float, float, float, float]] = []
        self.apart: int | None = None
        """A process of hotloop's own, which is not the command's."""
        self._every_s = _SAMPLE_S
        self._tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
        self._cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []

    def sample(self, *, now: bool = False) -> None:
        wall_s = time.time()
        if not now and self.samples and 0 <= wall_s - self.samples[-1][0] < self._every_s:
            return
        try:
            busy, whole, stolen = read_cores(Path("/proc/stat").read_text(), self._cores)
            own_s = self._own_s()
        except (OSError, ValueError, IndexError):
            return
        tick_s = self._tick_s
        self.samples.append((wall_s, busy * tick_s, whole * tick_s, own_s, stolen * tick_s))
        if len(self.samples) > _MOST_SAMPLES:
            del self.samples[1::2]
            self._every_s *= 2

    def to_mapping(self) -> dict[str, Any]:
        return {"samples": self.samples}

    def _own_s(self) -> float:
        mine = os.times()
        found = mine.children_user + mine.children_system
        left = _children(os.getpid())
        for pid in left:  # grows while it is walked
            if pid == self.apart:
                continue
            try:
                words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            found += sum(int(word) for word in words[11:15]) * self._tick_s
            left += _children(pid)
        return found


def read_cores(text: str, cores: list[int]) -> tuple[int, int, int]:
    """Busy, total and stolen time of these cores in ticks, from the text of /proc/stat.

    >>> read_cores("cpu  9 9 9 9 9 9 9 9\\ncpu0 5 0 1 10 2 0 0 1 0 0\\ncpu1 1 1 1 1 1 1 1 1 0 0\\n", [0])
    (7, 19, 0)
    """
    wanted = {f"cpu{number}" for number in cores}
    busy = whole = stolen = 0
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name in wanted:
            # user nice system idle iowait irq softirq steal; guests are in user already
            ticks = [int(word) for word in rest.split()[:8]]
            whole += sum(ticks)
            busy += sum(ticks) - ticks[3] - ticks[4]
            stolen += ticks[7]
            wanted.discard(name)
    if wanted:
        raise ValueError(f"no times of {', '.join(sorted(wanted))}")
    return busy, whole, stolen


def _watch(
    child: Any,
    request: dict[str, Any],
    folder: Path,
    started_s: float,
    cores: Cores,
    interruption: Interruption | None,
) -> tuple[str, str]:
    progress = folder / "progress"
    settled_s = begun_s = last_s = 0.0
    seen = None
    while True:
        if child.poll() is not None:
            return "exited", ""
        cores.sample()
        until_s = time.monotonic() + _TICK_S
        while time.monotonic() < until_s:
            wait_s = _TICK_S if interruption is None else interruption.wait_s
            readable, _, _ = select.select([sys.stdin.buffer], [], [], wait_s)
            if readable and not os.read(0, 4096):
                return "abandoned", "the tuning process has ended"
            if child.poll() is not None:
                return "exited", ""
            ended = None if interruption is None else interruption.look()
            if ended is not None:
                return ended
        now_s = time.monotonic()
        if any(folder.glob("stopped-*")):
            settled_s = settled_s or now_s
            if now_s - settled_s > _SETTLE_S:
                return "stopped", "the command was stopped after the last requested step"
        elif now_s - started_s > request["timeout_s"]:
            return "timeout", f"not finished after {request['timeout_s']:.0f} s"
        try:
            mark = progress.stat().st_mtime_ns
        except OSError:
            mark = None
        if mark is not None and mark != seen:
            seen, last_s = mark, now_s
            begun_s = begun_s or now_s
        if begun_s and not settled_s and now_s - last_s > request["stall_s"]:
            return "hang", f"no step was completed for {request['stall_s']:.0f} s"
        if not begun_s and now_s - started_s > request["start_s"]:
            return "hang", f"the first step was not completed within {request['start_s']:.0f} s"
        if available_memory_ratio() < request["least_memory_ratio"]:
            return "memory", "stopped because the host's memory was nearly full"
        _reap(child.pid)


def available_memory_ratio() -> float:
    """Share of the host's memory that is available, the cgroup's limit included; 1 where that is not known."""
    found = 1.0
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        found = int(fields["MemAvailable"].split()[0]) / int(fields["MemTotal"].split()[0])
    except (OSError, KeyError, ValueError):
        found = 1.0
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        cached = next(
            int(line.split()[1])
            for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines()
            if line.startswith("file ")
        )
    except (OSError, ValueError, StopIteration):
        return found
    return min(found, 1.0 - max(0, used - cached) / limit)


def _reap(keep_pid: int) -> None:
    """Take the exit status of orphans that became ours; the command's own is its Popen's."""
    for pid in _children(os.getpid()):
        if pid != keep_pid:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue


def end_processes(mark: str) -> None:
    """Kill every process of the trial, until none is found twice in a row, or the patience ends."""
    deadline_s = time.monotonic() + _PATIENCE_S
    clean = 0
    while clean < 2:
        found = find_processes(mark)
        clean = 0 if found else clean + 1
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        _reap(0)
        if found and time.monotonic() > deadline_s:
            return
        time.sleep(0.02)


def find_processes(mark: str) -> list[int]:
    """Processes that carry the mark or descend from this one; zombies do not count."""
    me = os.getpid()
    parents: dict[int, int] = {}
    states: dict[int, str] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        states[int(entry)], parents[int(entry)] = fields[0], int(fields[1])
    wanted = f"{MARK}={mark}".encode()
    found = []
    for pid, state in states.items():
        if pid != me and state not in "ZX" and (_descends(pid, me, parents) or wanted in _environment(pid)):
            found.append(pid)
    return found


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    for _ in range(1000):
        pid = parents.get(pid, 0)
        if pid == ancestor:
            return True
        if pid <= 1:
            return False
    return False


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _children(pid: int) -> list[int]:
    """Children of all threads of a process: a loader may start its workers from any of them."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += [int(word) for word in Path(f"/proc/{pid}/task/{thread}/children").read_text().split()]
    except (OSError, ValueError):
        return found
    return found


if __name__ == "__main__":
    sys.exit(main())
