"""hotloop for agents: a server of the Model Context Protocol over standard input and output (``hotloop mcp``).

Every tool runs one command of hotloop in a process of its own, in the folder that the agent names, and returns what the
command prints. A call that is canceled ends its process and the training that this process started.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Sequence

from mcp.server import MCPServer

MOST_CHARACTERS = 40_000
"""The end of a longer output is returned; the reports come last."""
GRACE_S = 60.0
"""For the report after the time limit, then for the launcher to end its workers."""
_ENDING: set[asyncio.Future[None]] = set()
"""The event loop itself keeps only weak references to its tasks."""

SERVER = MCPServer(
    "hotloop",
    instructions="Finds what slows down PyTorch training. Start with run (a command) or trace (existing traces); rule "
    "explains a finding by its id; tune proves fixes on the unmodified command.",
)


async def call(folder: str, limit_s: float, *words: str) -> str:
    """The exit code and the output of a hotloop command. After ``limit_s``, it is interrupted as by Ctrl-C."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "hotloop", *words),
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    reading = asyncio.ensure_future(process.communicate())
    try:
        await asyncio.wait({reading}, timeout=limit_s)
    finally:  # a cancellation goes on, and the process ends in a task that it does not reach
        ending = asyncio.ensure_future(_end(process, reading))
        _ENDING.add(ending)
        ending.add_done_callback(_ENDING.discard)
    output, _ = await asyncio.shield(reading)
    return f"exit code {process.returncode}\n{output.decode(errors='replace')[-MOST_CHARACTERS:]}"


async def _end(process: asyncio.subprocess.Process, reading: asyncio.Future[tuple[bytes, bytes]]) -> None:
    """As Ctrl-C does first: launchers end their workers, which are in sessions of their own and outlive a kill."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if reading.done():
            break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        await asyncio.wait({reading}, timeout=GRACE_S)


@SERVER.tool()
async def run(command: str, folder: str = ".", limit_s: float = 600.0) -> str:
    """Run a training command, such as "torchrun --nproc-per-node 2 train.py", and report what its steps wait for.

    After limit_s seconds, the training is interrupted as by Ctrl-C; the report then covers the steps so far.
    """
    return await call(folder, limit_s, "run", "--", *shlex.split(command))


@SERVER.tool()
async def tune(command: str, folder: str = ".", budget_s: int = 300) -> str:
    """Try the fixes for a training command's problems in fresh processes; write the proven ones to a strategy file."""
    return await call(folder, budget_s * 2.0, "tune", "--budget", f"{budget_s}s", "--", *shlex.split(command))


@SERVER.tool()
async def report(name: str = "last", folder: str = ".", limit_s: float = 120.0) -> str:
    """The report of a recorded run: its name under .hotloop/, its folder, or last."""
    return await call(folder, limit_s, "report", "--", name)


@SERVER.tool()
async def trace(paths: Sequence[str], folder: str = ".", limit_s: float = 600.0) -> str:
    """Diagnose existing traces of one training run: files of torch.profiler or Nsight Systems, or folders of them."""
    return await call(folder, limit_s, "trace", "--", *paths)


@SERVER.tool()
async def diff(before: str, after: str, folder: str = ".", limit_s: float = 600.0) -> str:
    """Why a step takes more or less time in the second of two recorded runs, or of two traces."""
    return await call(folder, limit_s, "diff", "--", before, after)


@SERVER.tool()
async def check(runs: Sequence[str], baseline: str, folder: str = ".", limit_s: float = 120.0) -> str:
    """Whether recorded runs are slower than a baseline file allows: pass, regression, or inconclusive."""
    return await call(folder, limit_s, "check", "--baseline", baseline, "--", *runs)


@SERVER.tool()
async def lint(paths: Sequence[str], folder: str = ".", limit_s: float = 120.0) -> str:
    """Check training scripts, Dockerfiles, batch scripts and manifests without running them."""
    return await call(folder, limit_s, "lint", "--", *paths)


@SERVER.tool()
async def rule(id: str, limit_s: float = 60.0) -> str:
    """What a rule looks for, what to do, and when the rule is wrong; or what a fix changes."""
    return await call(".", limit_s, "rule", "--", id)
