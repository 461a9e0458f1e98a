"""A training command -> the same command running with the agent attached, and how it ended.

The child stays in our process group and gets our standard streams; nothing of it is changed but two environment
variables. We only wait: if we are killed, the training continues.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from hotloop.core.errors import CommandNotStarted, UsageError

from .signal_watch import SignalGroupWatch

ATTACH_VARIABLE = "HOTLOOP_ATTACH"
SOURCE = Path(__file__).resolve().parents[2]
SITE = SOURCE / "agent" / "attach" / "site"

_SI_KERNEL = 128
"""si_code of a signal that the kernel sent, such as SIGINT from the terminal (it reaches the child directly)."""
TICK_S, LOOK_S = 1.0, 0.05
"""Between two calls of ``on_tick``, and the most that a signal waits until it is passed on."""

FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT")
ENDING = frozenset({"SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildEnd:
    """How the command ended: an exit code, or the number of the signal that ended it."""

    exit_code: int | None
    signal_number: int | None
    duration_s: float
    interrupted: bool = False
    """Whether somebody asked it to end before it did: Ctrl-C, a scheduler's SIGTERM."""

    @property
    def shell_code(self) -> int:
        """The exit code that a shell would show: 128+N for signal N."""
        return 128 + self.signal_number if self.signal_number is not None else (self.exit_code or 0)


def attach_environment(environment: Mapping[str, str], run_folder: Path, options: Mapping[str, Any]) -> dict[str, str]:
    """The environment of the child: ours, the attach variable, and the attach folder first on PYTHONPATH."""
    child = dict(environment)
    child[ATTACH_VARIABLE] = json.dumps({"run": str(run_folder), **options})
    inherited = child.get("PYTHONPATH")
    child["PYTHONPATH"] = str(SITE) + (os.pathsep + inherited if inherited else "")
    return child


def resolve_command(command: Sequence[str], search_path: str | None) -> list[str]:
    """The command as it will be started; ``train.py args`` becomes ``python train.py args`` with PATH's python.

    Raises CommandNotStarted with a shell's exit code (127 not found, 126 not executable).
    """
    first = command[0]
    if first.endswith(".py") and not os.access(first, os.X_OK):
        if not Path(first).is_file():
            raise CommandNotStarted(f"{first}: no such file; give the path of the training script", exit_code=127)
        python = shutil.which("python", path=search_path) or shutil.which("python3", path=search_path)
        if python is None:
            raise CommandNotStarted(
                f"no python on PATH to run {first}; run: hotloop run -- /path/to/python {first}", exit_code=127
            )
        return [python, *command]
    if os.sep in first:
        if not Path(first).exists():
            raise CommandNotStarted(f"{first}: no such file; check the path after --", exit_code=127)
        if Path(first).is_dir() or not os.access(first, os.X_OK):
            raise CommandNotStarted(
                f"{first}: not executable; run chmod +x on it, or put its interpreter first", exit_code=126
            )
    elif shutil.which(first, path=search_path) is None:
        raise CommandNotStarted(f"{first}: command not found; check the spelling and PATH", exit_code=127)
    return list(command)


def resolve_attachable(command: Sequence[str], search_path: str | None) -> list[str]:
    """As resolve_command. Raises UsageError as well, where its Python cannot load the agent."""
    resolved = resolve_command(command, search_path)
    refusal = refuses_agent(resolved, search_path)
    if refusal is not None:
        raise UsageError(refusal)
    return resolved


def run_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    on_tick: Callable[[], None] | None = None,
    cwd: Path | None = None,
) -> ChildEnd:
    """Start the command and wait. Signals that were sent to us alone are passed on; those that the terminal or a
    supervisor sent to all of us are not repeated. A signal that we are set to ignore (nohup) the child ignores too.

    ``on_tick`` is called about once a second while the command runs.
    """
    known = [getattr(signal, name) for name in FORWARDED if hasattr(signal, name)]
    numbers = [number for number in known if signal.getsignal(number) is not signal.SIG_IGN]
    can_wait = hasattr(signal, "sigtimedwait")
    watch = SignalGroupWatch(numbers) if can_wait else None
    seen: set[int] = set()

    def note(number: int, frame: FrameType | None) -> None:
        """Caught and dropped: unlike SIG_IGN this is not inherited by the child."""
        seen.add(number)

    before = {number: signal.signal(number, note) for number in numbers}
    start_s = time.monotonic()
    try:
        try:
            # With a folder Python forks; posix_spawn would leave the signals 32 and 33 ignored in the child.
            child = subprocess.Popen(list(command), env=dict(environment), close_fds=False, cwd=cwd or os.curdir)
        except OSError as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126
            raise CommandNotStarted(f"{command[0]}: {error.strerror}", exit_code=code) from error
        if watch is not None:
            seen |= _wait_passing_signals(child, numbers, on_tick, watch)
        else:
            child.wait()
    finally:
        if watch is not None:
            watch.end()
        for number, handler in before.items():
            signal.signal(number, handler)
    code = child.returncode
    return ChildEnd(
        exit_code=code if code >= 0 else None,
        signal_number=-code if code < 0 else None,
        duration_s=time.monotonic() - start_s,
        interrupted=any(signal.Signals(number).name in ENDING for number in seen),
    )


def _wait_passing_signals(
    child: subprocess.Popen[bytes],
    numbers: Sequence[int],
    on_tick: Callable[[], None] | None,
    watch: SignalGroupWatch,
) -> set[int]:
    """Wait for the child's end; returns the signals that came."""
    seen: set[int] = set()
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    gone, waiting = _open_child(child.pid), select.poll()
    if gone >= 0:
        waiting.register(gone, select.POLLIN)
    next_tick_s = time.monotonic() + TICK_S
    try:
        while child.poll() is None:
            # Not one wait for both: Python's sigtimedwait returns garbage where SIGCONT comes after its time.
            if gone < 0:
                time.sleep(LOOK_S)
            else:
                waiting.poll(1_000 * LOOK_S)
            while (info := signal.sigtimedwait(numbers, 0)) is not None and info.si_signo in numbers:
                seen.add(info.si_signo)
                if info.si_code != _SI_KERNEL and not watch.saw(info.si_signo):
                    child.send_signal(info.si_signo)
            if on_tick is not None and time.monotonic() >= next_tick_s:
                next_tick_s = time.monotonic() + TICK_S
                on_tick()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        if gone >= 0:
            os.close(gone)
    return seen


def _open_child(pid: int) -> int:
    """A descriptor that becomes readable when the child is gone; -1 where the kernel gives none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1


def oom_kills(cgroup_root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """How often the kernel killed for memory in our cgroup so far; None where that is not counted."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    relative = next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
    for folder in (cgroup_root / relative, cgroup_root):
        try:
            for line in (folder / "memory.events").read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
        except (OSError, ValueError):
            continue
    return None


def refuses_agent(command: Sequence[str], search_path: str | None) -> str | None:
    """Why the Python that the command starts cannot load the agent, and what to do; None where it can.

    -I and -E ignore PYTHONPATH, so that only an installed hotloop attaches itself; -S reads neither.
    """
    flags: set[str] = set()
    for word in command[1:] if os.path.basename(command[0]).startswith("python") else ():
        if not word.startswith("-") or word in ("-m", "-c"):
            break
        flags |= set() if word.startswith("--") else set("IES") & set(word[1:])
    if "S" in flags:
        return "Python was started with -S, which keeps hotloop out of it; remove the option"
    if not flags or has_attach_file(command[0], search_path):
        return None
    return (
        f"Python was started with -{min(flags)}, which ignores PYTHONPATH; remove the option, or install hotloop in "
        "the environment of that Python"
    )


def has_attach_file(python: str, search_path: str | None) -> bool:
    """Whether hotloop is installed for a Python, named as on its command line: its own file attaches it then."""
    found = shutil.which(python, path=search_path)
    if found is None:
        return False
    return any(Path(found).parent.parent.glob("lib/python3*/site-packages/hotloop_attach.pth"))


__all__ = [
    "ATTACH_VARIABLE",
    "ChildEnd",
    "attach_environment",
    "has_attach_file",
    "oom_kills",
    "refuses_agent",
    "resolve_attachable",
    "resolve_command",
    "run_child",
]
