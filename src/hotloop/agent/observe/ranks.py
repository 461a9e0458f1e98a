"""Launcher variables and process group -> the rank of this process; torch is looked at only where it is loaded."""

from __future__ import annotations

import os
import socket
import sys


def current_rank() -> int | None:
    """Rank of this process: from the process group, else the launcher's variables, else 0.

    None in a process that the training started by hand (it has no rank of its own).
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank: int = distributed.get_rank()
        return rank
    names = ["RANK"]
    if os.environ.get("SLURM_NTASKS", "1") != "1":
        names.append("SLURM_PROCID")
    for name in names:
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    process = sys.modules.get("multiprocessing.process")
    return 0 if process is None or process.parent_process() is None else None


def worker_name(rank: int | None) -> str:
    """Name of this process in trace files: rank, host and pid."""
    host = socket.gethostname().partition(".")[0]
    return f"rank{'x' if rank is None else rank}_{host}_{os.getpid()}"
