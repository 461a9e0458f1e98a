"""A benchmark's request -> the answer of its program, run with the user's Python in the user's folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hotloop.core.errors import HotloopError, UsageError

PROGRAM = Path("hotloop") / "probe" / "benchmarks.py"


class BenchmarkError(HotloopError):
    """The program could not be run or gave no result; the text says why."""


def find_python(given: str | None, search_path: str | None) -> str:
    """The interpreter to run: the one given, else PATH's."""
    if given is not None:
        found = shutil.which(given, path=search_path)
        if found is None:
            raise UsageError(f"--python {given}: not found or not executable; give the path of the training's Python")
        return found
    found = shutil.which("python", path=search_path) or shutil.which("python3", path=search_path)
    return found or sys.executable


def split_target(target: str) -> tuple[str, str]:
    """``FILE:FUNCTION`` -> both. Raises UsageError."""
    file, colon, function = target.rpartition(":")
    if not colon or not file or not function.isidentifier():
        raise UsageError(f"{target}; give FILE:FUNCTION, such as train.py:make_training")
    if not Path(file).is_file():
        raise UsageError(f"{file}: no such file; give the path of the Python file that defines {function}")
    return file, function


def run_program(request: Mapping[str, Any], python: str, source_folder: Path, timeout_s: float) -> dict[str, Any]:
    """The program's answer. What the user's code prints goes to standard error.

    Raises UsageError for what the program says is the user's to mend, BenchmarkError when it fails or takes too long;
    it and its own children (workers) are ended then.
    """
    with tempfile.TemporaryDirectory(prefix="hotloop-bench-") as folder:
        given, result = Path(folder) / "in.json", Path(folder) / "out.json"
        given.write_text(json.dumps(request), encoding="utf-8")
        words = [python, str(source_folder / PROGRAM), str(given), str(result)]
        sys.stderr.flush()
        try:
            child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)
        except OSError as error:
            raise BenchmarkError(f"the benchmark could not be started with {python}: {error.strerror}") from error
        try:
            code = child.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise BenchmarkError(f"the benchmark was stopped after {timeout_s:.0f} s; try a larger --budget") from None
        finally:
            _end(child)
        if code or not result.exists():
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise BenchmarkError(f"the benchmark ended with {how}; see its output above ({python})")
        answer: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    if "error" in answer:
        raise UsageError(str(answer["error"]))
    return answer


def _end(child: subprocess.Popen[bytes]) -> None:
    """End what is left of the program's own session."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        child.poll()
    child.wait()
