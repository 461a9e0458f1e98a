"""Tests without torch in the oldest and the newest CPython of this machine -> benchmarks/results/pythons.json.

What reads, judges and draws is tested so; the agent inside the training needs a torch build for that Python. Each
Python gets an environment of its own (.venv-3.10 ...) with hotloop and what the tests import.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "pythons.json"
TOOLS = ("pytest", "hypothesis")
MINORS = range(10, 20)
TESTS = ("tests/core", "tests/analyze", "tests/diagnose", "tests/prescribe", "tests/report")


def main() -> int:
    found = [name for minor in MINORS if (name := f"python3.{minor}") and runs(name)]
    if not found:
        print(f"no python3.{MINORS[0]} or newer is on the PATH", file=sys.stderr)
        return 2
    results = [smoke(name) for name in dict.fromkeys((found[0], found[-1]))]
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    RESULT.write_text(
        json.dumps(
            {
                "schema": "hotloop.pythons/1",
                "date": date.today().isoformat(),
                "commit": commit.stdout.strip() or None,
                "machine": {"system": platform.platform(), "cores": len(os.sched_getaffinity(0))},
                "tests": TESTS,
                "results": results,
            },
            indent=1,
        )
        + "\n",
        encoding="utf-8",
    )
    for result in results:
        print(result)
    return int(any(result["failed_count"] for result in results))


def runs(name: str) -> bool:
    """A name on the PATH may be a shim for a version that is not there."""
    path = shutil.which(name)
    return path is not None and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0


def smoke(name: str) -> dict[str, object]:
    folder = ROOT / f".venv-{name.removeprefix('python')}"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([name, "-m", "venv", folder], check=True)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    subprocess.run([*pip, *TOOLS, "-e", "."], cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = [
            python,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "not slow",
            f"--junitxml={report}",
            *TESTS,
        ]
        subprocess.run(command, cwd=ROOT, check=False)
        counts = ElementTree.parse(report).getroot()[0].attrib
    version = subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    failed_count = int(counts["failures"]) + int(counts["errors"])
    skipped_count = int(counts["skipped"])
    return {
        "python": version,
        "passed_count": int(counts["tests"]) - failed_count - skipped_count,
        "failed_count": failed_count,
        "skipped_count": skipped_count,
    }


if __name__ == "__main__":
    sys.exit(main())
