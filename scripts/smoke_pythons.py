"""What must hold in every Python: the tests of the hooks and of what reads them, in each CPython of this machine from
3.11 on.

    python scripts/smoke_pythons.py [TORCH]        a requirement, torch==2.13.0 if none is given

Each Python gets an environment of its own (.venv-3.12 ...) with hotloop, torch and what the tests import. What fails is
named; a torch that was built for CUDA says so in its version.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("pytest", "hypothesis", "PyYAML", "fsspec", "pyarrow")
TORCH = "torch==2.13.0"
MINORS = range(11, 20)
TESTS = (
    "tests/core", "tests/analyze", "tests/diagnose", "tests/report", "tests/replay", "tests/observe",
    "tests/attach",
)  # fmt: skip


def main() -> int:
    found = [name for minor in MINORS if (name := f"python3.{minor}") and runs(name)]
    if not found:
        print(f"no python3.{MINORS[0]} or newer is on the PATH", file=sys.stderr)
        return 2
    torch = sys.argv[1] if len(sys.argv) > 1 else TORCH
    results = [smoke(name, torch) for name in found]
    for result in results:
        print(result)
    return int(any(result["failed_count"] for result in results))


def runs(name: str) -> bool:
    """A name on the PATH may be a shim for a version that is not there."""
    path = shutil.which(name)
    return path is not None and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0


def smoke(name: str, torch: str) -> dict[str, object]:
    folder = ROOT / f".venv-{name.removeprefix('python')}"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([name, "-m", "venv", folder], check=True)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    subprocess.run([*pip, *TOOLS, torch, "-e", "."], cwd=ROOT, check=True)
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
        suite = ElementTree.parse(report).getroot()[0]
    counts = suite.attrib
    failed = [
        f"{case.get('classname')}.{case.get('name')}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    version, build = subprocess.run(
        [python, "-W", "ignore", "-c", "import platform, torch; print(platform.python_version(), torch.__version__)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    failed_count = int(counts["failures"]) + int(counts["errors"])
    skipped_count = int(counts["skipped"])
    return {
        "python": version,
        "torch": build,
        "passed_count": int(counts["tests"]) - failed_count - skipped_count,
        "failed_count": failed_count,
        "failed": failed,
        "skipped_count": skipped_count,
    }


if __name__ == "__main__":
    sys.exit(main())
