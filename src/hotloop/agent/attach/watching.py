"""A call from inside a training process -> this process armed as under ``hotloop run``, with a run folder of its
own."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hotloop.agent.observe.ranks import current_rank
from hotloop.core.errors import HotloopError
from hotloop.core.trace_plan import parse_trace_plan, parse_trace_ranks

from .run_folder import create_run_folder, default_name, join_run_folder, write_manifest

REFRESH_S = 0.5
"""hotloop's own process looks several times in this period at what came."""
RUN_VARIABLE = "HOTLOOP_WATCH_RUN"
"""Run folder of the process that began to watch, for the processes that it spawns."""


def begin_watching(name: str | None, options: Mapping[str, Any]) -> str:
    """The run folder that this process records into, armed now if it was not."""
    try:
        import torch.optim  # noqa: F401 (under hotloop run this import arms)
    except ImportError as error:
        raise HotloopError(
            f"watch() observes PyTorch training, but this Python has no {error.name}; install it, or use the Python "
            "used for training"
        ) from error

    from .agent import arm_agent, current_agent

    agent = current_agent()
    if agent is not None:
        return str(agent.options["run"])
    if options.get("trace"):
        plan = parse_trace_plan(options["trace"])
        parse_trace_ranks(options.get("trace_ranks") or "all")
        if current_rank() == 0:
            print(f"hotloop: the profiler {plan.describe()}", file=sys.stderr)
    command = _command()
    inherited = os.environ.get(RUN_VARIABLE)
    if inherited and _is_spawned():
        folder = Path(inherited)
    elif int(os.environ.get("WORLD_SIZE") or 1) > 1 and _launched_wall_s() is not None:
        # All ranks that one launcher started on this host meet in one folder, also after a restart.
        folder = join_run_folder(name or f"{default_name(_launched_wall_s() or 0.0, command)}-{os.getppid()}", command)
    else:
        folder, notes = create_run_folder(name, command)
        write_manifest(folder, command, notes)
    os.environ[RUN_VARIABLE] = str(folder)
    agent = arm_agent({"run": str(folder), **options})
    if agent is None:
        raise HotloopError(f"nothing can be recorded: hotloop could not start its own process for {folder}")
    if not _is_spawned() and current_rank() == 0:
        atexit.register(_write_where, agent, folder, os.getpid())
    return str(folder)


def refresh() -> None:
    """Have written down what is otherwise written every few seconds."""
    from .agent import current_agent

    agent = current_agent()
    if agent is not None:
        agent.ring.tell({"kind": "refresh"})
        time.sleep(REFRESH_S)


def _write_where(agent: Any, folder: Path, pid: int) -> None:
    if agent.started and os.getpid() == pid:
        shown = os.path.relpath(folder) if folder.is_relative_to(Path.cwd()) else folder
        print(f"hotloop: recorded; to see the report: hotloop report {shown}", file=sys.stderr)


def _command() -> Sequence[str]:
    return [word for word in getattr(sys, "orig_argv", sys.argv) if word] or ["python"]


def _is_spawned() -> bool:
    """True in a process that multiprocessing started, also while it still imports the main script again."""
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return False
    return process.parent_process() is not None or getattr(process.current_process(), "_inheriting", False)


def _launched_wall_s() -> float | None:
    """When our parent process was started, in seconds of wall time; None where /proc does not say."""
    try:
        ticks = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19])
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    return int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
