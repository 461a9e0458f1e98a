"""A request -> the answer of a program of hotloop.probe in the training's Python, or one line of what went wrong."""

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


class ProbeError(HotloopError):
    """The probe could not be run or gave no result; the text says why."""


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


def run_program(
    program: str,
    request: Mapping[str, Any],
    python: str,
    timeout_s: float,
    *,
    ranks: Sequence[Mapping[str, str]] = ({},),
    what: str = "the benchmark",
) -> dict[str, Any]:
    """The answer of the first of several processes of a program, each with its own variables beside this process's.

    ``{folder}`` in a text of the request is a folder that all of them share. What the user's code prints goes to
    standard error. ``what`` names the program in errors. Raises UsageError for what the program says is the user's to
    mend, BenchmarkError when it fails or takes too long; it and its own children (workers) are ended then. One process
    that fails ends all, because the others would wait for it.
    """
    with tempfile.TemporaryDirectory(prefix="hotloop-bench-") as folder:
        given = Path(folder) / "in.json"
        given.write_text(json.dumps(request).replace("{folder}", folder), encoding="utf-8")
        results = [Path(folder) / f"out-{number}.json" for number in range(len(ranks))]
        sys.stderr.flush()
        with contextlib.ExitStack() as running:
            try:
                children = [
                    running.enter_context(
                        started(
                            [python, str(START), program, str(given), str(result)],
                            stdout=2,
                            env={**os.environ, **variables},
                        )
                    )
                    for result, variables in zip(results, ranks, strict=True)
                ]
            except OSError as error:
                raise BenchmarkError(f"{what} could not be started with {python}: {error.strerror}") from error
            code = _wait_all(children, timeout_s, what)
        answers = [json.loads(result.read_text(encoding="utf-8")) for result in results if result.exists()]
    for answer in answers:
        if "error" in answer:
            raise UsageError(str(answer["error"]))
    if code or len(answers) < len(ranks):
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise BenchmarkError(f"{what} ended with {how}; see its output above ({python})")
    first: dict[str, Any] = answers[0]
    return first


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


def run_probe(request: dict[str, Any], interpreter: str, timeout_s: float) -> dict[str, Any]:
    """The result of the probe of opportunities, which says nothing on the terminal; the interpreter needs torch only.

    Raises ProbeError when the probe fails or takes longer than ``timeout_s``; it and its own children are ended then.
    """
    with tempfile.TemporaryDirectory(prefix="hotloop-probe-") as folder:
        given, result, errors = Path(folder) / "in.json", Path(folder) / "out.json", Path(folder) / "errors.txt"
        given.write_text(json.dumps(request), encoding="utf-8")
        words = [interpreter, str(START), "opportunities", str(given), str(result)]
        environment = _bare_environment(int(request.get("threads") or 1))
        try:
            with (
                errors.open("wb") as complaints,
                started(words, stdout=subprocess.DEVNULL, stderr=complaints, cwd=folder, env=environment) as child,
            ):
                code = child.wait(timeout=timeout_s)
        except OSError as error:
            raise ProbeError(f"the probe could not be started with {interpreter}: {error}") from error
        except subprocess.TimeoutExpired:
            raise ProbeError(f"the probe took longer than {timeout_s:.0f} s") from None
        if code or not result.exists():
            last = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            raise ProbeError(f"the probe exited with {code}: {''.join(last)[:200]}")
        answer: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return answer


def _bare_environment(threads: int) -> dict[str, str]:
    """This process's environment with the training's number of threads, and nothing that attaches or joins a group."""
    dropped = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "PYTHONPATH")
    kept = {k: v for k, v in os.environ.items() if k not in dropped and not k.startswith(("HOTLOOP", "TORCHELASTIC"))}
    return kept | {"OMP_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": ""}
