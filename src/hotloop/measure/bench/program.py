"""A request -> what a program of hotloop.measure.probe returns in the training's Python, or one line of what failed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hotloop.core.children import started
from hotloop.core.errors import HotloopError, UsageError

START = Path(__file__).resolve().parents[1] / "probe" / "start.py"


class BenchmarkError(HotloopError):
    """The program could not be run or gave no result; the text says why."""


def find_python(given: str | None, search_path: str | None) -> str:
    """The interpreter to run: the one given, else PATH's."""
    if given is not None:
        found = shutil.which(given, path=search_path)
        if found is None:
            raise UsageError(
                f"--python {given}: not found or not executable; give the path of the Python used for training"
            )
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


def run_program(
    program: str,
    request: Mapping[str, Any],
    python: str,
    timeout_s: float,
    *,
    ranks: Sequence[Mapping[str, str]] = ({},),
    what: str = "the benchmark",
    environment: Mapping[str, str] = os.environ,
    is_quiet: bool = False,
) -> dict[str, Any]:
    """The result of the first of several processes of a program, each with its own variables added to ``environment``.

    ``{folder}`` in a text of the request is a folder that all of them share. What the user's code prints goes to
    standard error, or nowhere with ``is_quiet``. ``what`` names the program in errors. Raises UsageError for what the
    program says is the user's to mend, BenchmarkError when it fails or takes too long; it and its own children
    (workers) are ended then. One process that fails ends all, because the others would wait for it.
    """
    with tempfile.TemporaryDirectory(prefix="hotloop-bench-") as folder:
        given, complaints = Path(folder) / "in.json", Path(folder) / "errors.txt"
        given.write_text(json.dumps(request).replace("{folder}", folder), encoding="utf-8")
        results = [Path(folder) / f"out-{number}.json" for number in range(len(ranks))]
        sys.stderr.flush()
        with contextlib.ExitStack() as running:
            options: dict[str, Any] = {"stdout": 2}
            if is_quiet:
                stderr = running.enter_context(complaints.open("wb"))
                options = {"stdout": subprocess.DEVNULL, "stderr": stderr, "cwd": folder}
            try:
                children = [
                    running.enter_context(
                        started(
                            [python, str(START), program, str(given), str(result)],
                            env={**environment, **variables},
                            **options,
                        )
                    )
                    for result, variables in zip(results, ranks, strict=True)
                ]
            except OSError as error:
                raise BenchmarkError(f"{what} could not be started with {python}: {error.strerror}") from error
            code = _wait_all(children, timeout_s, what)
        answers = [json.loads(result.read_text(encoding="utf-8")) for result in results if result.exists()]
        said = complaints.read_text(encoding="utf-8", errors="replace").splitlines()[-1:] if is_quiet else ()
    for answer in answers:
        if "error" in answer:
            raise UsageError(str(answer["error"]))
    if code or len(answers) < len(ranks):
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        why = "".join(said)[:200] if is_quiet else f"see its output above ({python})"
        raise BenchmarkError(f"{what} ended with {how}; {why}")
    first: dict[str, Any] = answers[0]
    return first


def _wait_all(children: Sequence[subprocess.Popen[bytes]], timeout_s: float, what: str) -> int:
    """0 once all have exited with 0, else the code of the first process that was seen to fail."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        codes = [child.poll() for child in children]
        failed = next((code for code in codes if code), None)
        if failed is not None or None not in codes:
            return failed or 0
        if time.monotonic() > deadline_s:
            advice = "; try a larger --budget" if what == "the benchmark" else ""
            raise BenchmarkError(f"{what} was stopped after {timeout_s:.0f} s{advice}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            children[codes.index(None)].wait(timeout=0.2)
