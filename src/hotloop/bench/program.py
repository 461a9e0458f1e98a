"""A benchmark's request -> the answer of its program, run with the user's Python in the user's folder."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
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
    return run_ranks(request, python, source_folder / PROGRAM, timeout_s, ({},))


def run_ranks(
    request: Mapping[str, Any],
    python: str,
    program: Path,
    timeout_s: float,
    ranks: Sequence[Mapping[str, str]],
    what: str = "the benchmark",
) -> dict[str, Any]:
    """The answer of the first of several processes of a program, each with its own variables beside this process's.

    ``{folder}`` in a text of the request is a folder that all of them share. Raises as ``run_program`` does: one that
    fails ends all, because the others would wait for it. ``what`` names the program in errors.
    """
    with tempfile.TemporaryDirectory(prefix="hotloop-bench-") as folder:
        given = Path(folder) / "in.json"
        given.write_text(json.dumps(request).replace("{folder}", folder), encoding="utf-8")
        results = [Path(folder) / f"out-{number}.json" for number in range(len(ranks))]
        sys.stderr.flush()
        children: list[subprocess.Popen[bytes]] = []
        try:
            for result, variables in zip(results, ranks, strict=True):
                words = [python, str(program), str(given), str(result)]
                with _interrupts_deferred():
                    children.append(
                        subprocess.Popen(
                            words,
                            stdin=subprocess.DEVNULL,
                            stdout=2,
                            start_new_session=True,
                            env={**os.environ, **variables},
                        )
                    )
            code = _wait_all(children, timeout_s, what)
        except OSError as error:
            raise BenchmarkError(f"{what} could not be started with {python}: {error.strerror}") from error
        finally:
            for child in children:
                _end(child)
        answers = [_read_answer(result) for result in results]
    for answer in answers:
        if answer is not None and "error" in answer:
            raise UsageError(str(answer["error"]))
    if code or answers[0] is None:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise BenchmarkError(f"{what} ended with {how}; see its output above ({python})")
    return answers[0]


@contextlib.contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Ctrl-C within is raised at the end, so that no child is started that nobody knows of."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: seen.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if seen:
            signal.raise_signal(signal.SIGINT)


def _wait_all(children: Sequence[subprocess.Popen[bytes]], timeout_s: float, what: str) -> int:
    """0 once all have ended so, else the code of the first one that was seen to fail."""
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


def _read_answer(result: Path) -> dict[str, Any] | None:
    if not result.exists():
        return None
    answer: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return answer


def _end(child: subprocess.Popen[bytes]) -> None:
    """End what is left of the program's own session."""
    if child.returncode is None:
        child.poll()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
