"""The processes of a run that ended -> what they ran with: packages, variables and the machine (environment.json).

hotloop's own process reads all of it, after the command has ended: nothing of it delays a training.
"""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hotloop.core.environment import ENVIRONMENT_SCHEMA
from hotloop.core.machine import count_cores

READ_TIMEOUT_S = 10.0
READ_PACKAGES = """
import importlib.metadata, json, re, site, sys
packages = {}
user = [site.getusersitepackages()] if sys.prefix == sys.base_prefix else []
for one in importlib.metadata.distributions(path=[*sys.argv[1:], *user, *sys.path]):
    if one.metadata["Name"] and one.version:
        commit = json.loads(one.read_text("direct_url.json") or "{}").get("vcs_info", {}).get("commit_id", "")[:12]
        name = re.sub("[-_.]+", "-", one.metadata["Name"]).lower()
        packages.setdefault(name, one.version + (commit and f" at {commit}"))
print(json.dumps(packages))
"""
"""Runs in the training's Python with -I, so that it imports nothing of the user's. As for import, the first counts."""
_OF_ONE_LAUNCH = re.compile(r"(LOCAL_)?(RANK|WORLD_SIZE)$|SLURM_")
"""Variables that say which process of which job this is."""


def describe_environment(processes: Sequence[Mapping[str, Any]], variables: Mapping[str, str]) -> dict[str, Any]:
    """The content of environment.json. ``processes`` are the process facts of a run, ``variables`` those that the
    command got. Of several ranks, the lowest on this host counts.
    """
    here = [one for one in processes if one.get("host") == socket.gethostname() and one.get("executable")]
    lead = min(here, key=lambda one: one.get("rank") or 0, default={})
    recorded = lead.get("environment")
    return {
        "schema": ENVIRONMENT_SCHEMA,
        "packages": read_packages(lead["executable"], variables.get("PYTHONPATH", "")) if lead else None,
        "variables": {name: value for name, value in recorded.items() if not _OF_ONE_LAUNCH.match(name)}
        if isinstance(recorded, dict)
        else None,
        "machine": {
            "python": lead.get("python"),
            "device": lead.get("device_name"),
            "driver": _find_line("/proc/driver/nvidia/version", r"Kernel Module.*?(\d+\.[\d.]+)"),
            "cpu": _find_line("/proc/cpuinfo", r"model name\s*: (.*)"),
            "cores": str(count_cores()),
            "kernel": platform.release(),
        },
    }


def read_packages(python: str, search_path: str = "", timeout_s: float = READ_TIMEOUT_S) -> dict[str, str] | None:
    """Versions of the packages that a Python can import, by normalized name; None if it does not say.

    ``search_path`` is what PYTHONPATH adds.
    """
    places = [place for place in search_path.split(os.pathsep) if place]
    try:
        done = subprocess.run(
            [python, "-I", "-c", READ_PACKAGES, *places],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            check=True,
        )
        packages: dict[str, str] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return packages


def _find_line(path: str, pattern: str) -> str | None:
    """The first group of a pattern in a system file; None without that."""
    try:
        found = re.search(pattern, Path(path).read_text(errors="replace"))
    except OSError:
        return None
    return None if found is None else found[1].strip()
