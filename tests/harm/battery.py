#!/usr/bin/env python3
"""Is a training harmed by being watched? Each script alone and under `hotloop run`, in turn, and what differs.

    python tests/harm/battery.py [--pairs 3] [--only PATTERN] [--python P] [--hotloop H] [--json FILE] [--quick]

Every script prints a RESULT line with the bits of its loss and weights, its threads, descriptors, children, random
generators, CPU time, longest step and peak memory, and what it counts itself. What is judged by LIMITS must hold in the
better of the pairs; all else must be equal in every pair. Standard error must hold the script's own lines, in order.
A script's head may say ``# exit: N`` (negative: a signal) and ``# command: ...`` with {python}, {script} and {folder}.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

CPU_FACTOR, CPU_ADDED_S = 1.03, 0.3
STEP_FACTOR, STEP_ADDED_MS = 1.5, 100.0
MEMORY_ADDED_MB = 20.0
DESCRIPTORS_ADDED = 0
"""Of hotloop's own, in every training."""
TIMEOUT_S = 90.0
SCRIPTS = Path(__file__).resolve().parent / "scripts"
TOLD = ("s",)
"""Fields that are shown and not judged: wall time has noise of its own, and waits show in the longest step."""

Fields = dict[str, str]


class Kind(NamedTuple):
    """How a script is started, and how it ends when all is well."""

    name: str
    command: list[str]
    exit: int


class Run(NamedTuple):
    """What one run of a script showed."""

    exit: int
    results: list[Fields]
    out: list[str]
    err: list[str]
    seconds: float


def read_kind(path: Path, python: str) -> Kind:
    text = path.read_text()
    exits = re.search(r"^# exit: (-?\d+)$", text, re.M)
    command = re.search(r"^# command: (.+)$", text, re.M)
    words = shlex.split(command[1]) if command else ["{python}", "{script}"]
    places = {"{python}": python, "{script}": str(path), "{folder}": str(path.parent)}
    for name, value in places.items():
        words = [word.replace(name, value) for word in words]
    return Kind(path.stem, words, int(exits[1]) if exits else 0)


def run(command: list[str], exit_of_signals: bool) -> Run:
    """One run in a temporary folder of its own. ``exit_of_signals``: 128 + n stands for signal n, as in a shell."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("HOTLOOP", "PYTEST"))}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        paths = [Path(folder) / name for name in ("out.txt", "err.txt", "RESULT.txt")]
        work = Path(folder) / "work"
        work.mkdir()
        began = time.perf_counter()
        with open(paths[0], "wb") as out, open(paths[1], "wb") as err:
            process = subprocess.Popen(
                command, cwd=work, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, start_new_session=True
            )
            try:
                code = process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                code = 124
            if code == 124:
                _end_group(process)
        seconds = time.perf_counter() - began
        out_lines, err_lines = (path.read_text(errors="replace").splitlines() for path in paths[:2])
        written = work / "RESULT.txt"
        told = [*out_lines, *(written.read_text().splitlines() if written.exists() else [])]
    if exit_of_signals and 128 < code < 128 + 32 and code - 128 != signal.SIGTERM:
        code = 128 - code
    folders = re.compile(re.escape(folder) + r"|/tmp/tmp\w+")
    results = sorted(line[7:] for line in told if line.startswith("RESULT "))
    return Run(
        code,
        [dict(part.split("=", 1) for part in line.split() if "=" in part) for line in results],
        [folders.sub("<folder>", line) for line in out_lines if not line.startswith("RESULT ")],
        [_plain_error(folders.sub("<folder>", line)) for line in err_lines],
        round(seconds, 2),
    )


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        time.sleep(1)
    process.wait()


def _plain_error(line: str) -> str:
    """A line of standard error without what differs from run to run: addresses, process ids, times, marks."""
    return re.sub(
        r"0x[0-9a-f]+|\b\d{2}:\d{2}:\d{2}(\.\d+)?\b|(?<=pid )\d+|\b[IWE]\d{4}\b|\b\d{3,}\b", "#", line
    ).rstrip(" ~^")


def without_library_frames(lines: list[str]) -> list[str]:
    """The lines but for those of a traceback that stand for a frame of a library: one of these may be another's."""
    kept, is_library = [], False
    for line in lines:
        if line.lstrip().startswith('File "'):
            is_library = "site-packages" in line or "hotloop" in line
        elif not line.startswith("    ") and not line.startswith("[rank"):
            is_library = False
        if not is_library:
            kept.append(line)
    return kept


def missing_lines(own: list[str], all_lines: list[str]) -> list[str]:
    """The lines of one list that do not come, in their order, in the other."""
    rest, missing = iter(all_lines), []
    for line in without_library_frames(own):
        found = False
        for other in rest:
            if other == line:
                found = True
                break
        if not found:
            missing.append(line)
            break
    return missing


def limit_of(name: str) -> Callable[[float], float] | None:
    """What is allowed where a script alone takes so much, for a field that is judged by a limit."""
    if name.endswith("longest_ms"):
        return lambda alone: max(alone * STEP_FACTOR, alone + STEP_ADDED_MS)
    if name.endswith("_mb"):
        return lambda alone: alone + MEMORY_ADDED_MB
    if name.endswith("_s"):
        return lambda alone: alone * CPU_FACTOR + CPU_ADDED_S
    return None


def compare(kind: Kind, alone: Run, watched: Run, *, judges_limits: bool) -> tuple[list[str], list[str]]:
    """What differs at all, and what is more than the limits allow."""
    differs, more = [], []
    if alone.exit != kind.exit:
        differs.append(f"alone exit {alone.exit}, not {kind.exit}")
    if alone.exit != watched.exit:
        differs.append(f"exit {alone.exit} -> {watched.exit} {last_error(watched) if watched.exit else ''}".strip())
    if len(alone.results) != len(watched.results):
        differs.append(f"results {len(alone.results)} -> {len(watched.results)}")
    if not alone.results:
        differs.append("no RESULT alone")
    if alone.out != watched.out:
        pairs = [(a, b) for a, b in zip([*alone.out, ""], [*watched.out, ""], strict=False) if a != b]
        first = pairs[0] if pairs else ("", "")
        differs.append(f"stdout {first[0][:100]!r} -> {first[1][:100]!r}")
    if missing := missing_lines(alone.err, watched.err):
        differs.append(f"stderr lacks {missing[0][:80]!r}")
    for before, after in zip(alone.results, watched.results, strict=False):
        for name in sorted({*before, *after} - set(TOLD)):
            old, new = before.get(name), after.get(name)
            limit = limit_of(name)
            if name == "descriptors" and old and new and old.isdigit() and int(new) == int(old) + DESCRIPTORS_ADDED:
                continue
            if limit is None or old is None or new is None:
                if old != new or (name == "landmines" and new != "0"):
                    differs.append(f"{name} {old} -> {new}")
            elif judges_limits and float(new) > limit(float(old)):
                more.append(f"{name} {old} -> {new}")
    return differs, more


def last_error(one: Run) -> str:
    lines = [line for line in one.err if line.strip()]
    return lines[-1][:140] if lines else ""


def try_kind(kind: Kind, hotloop: str, *, pairs: int, quick: bool) -> dict[str, Any]:
    """A row: pairs of runs, alone first and watched first in turn."""
    options = ["-q", "--no-probe"] if quick else ["-q"]
    commands = {"alone": kind.command, "watched": [hotloop, "run", *options, "--", *kind.command]}
    best: list[str] | None = None
    shown: dict[str, Run] = {}
    differs: list[str] = []
    done = 0
    for number in range(pairs):
        now = {}
        for how in (("alone", "watched"), ("watched", "alone"))[number % 2]:
            now[how] = run(commands[how], how == "watched")
        done += 1
        differs, more = compare(kind, now["alone"], now["watched"], judges_limits=not quick)
        if best is None or differs or len(more) < len(best):
            best, shown = more, now
        if differs:
            break
    return {
        "script": kind.name,
        "harm": [*differs, *(best or [])],
        "pairs": done,
        "alone": shown["alone"]._asdict(),
        "watched": shown["watched"]._asdict(),
    }


COLUMNS = (
    "exit",
    "loss",
    "out",
    "err",
    "cpu_s",
    "longest_ms",
    "peak_mb",
    "threads",
    "descriptors",
    "children",
    "mines",
)


def describe_row(row: dict[str, Any]) -> str:
    """One line of the table: what was the same is told once, what was not as before > after."""
    alone, watched = row["alone"], row["watched"]
    before, after = ((one["results"] or [{}])[-1] for one in (alone, watched))
    cells = [_change(alone["exit"], watched["exit"])]
    cells.append("-" if "loss" not in before else "same" if before["loss"] == after.get("loss") else "DIFFERS")
    cells.append("same" if alone["out"] == watched["out"] else "DIFFERS")
    cells.append("LACKS" if missing_lines(alone["err"], watched["err"]) else "same")
    for name in ("cpu_s", "longest_ms", "peak_mb"):
        old, new = before.get(name), after.get(name)
        cells.append("-" if old is None or new is None else f"{float(old):.4g}>{float(new):.4g}")
    for name in ("threads", "descriptors", "children", "landmines"):
        cells.append(_change(before.get(name, "-"), after.get(name, "-")))
    widths = (8, 7, 7, 5, 11, 12, 9, 7, 6, 4, 5)
    line = " ".join(f"{cell:{width}}" for cell, width in zip(map(str, cells), widths, strict=True))
    verdict = "HARMED " + "; ".join(row["harm"]) if row["harm"] else "as alone"
    return f"{row['script']:32} {line} {verdict}"


def _change(old: Any, new: Any) -> str:
    return str(old) if str(old) == str(new) else f"{old}>{new}"


def find_commit() -> str:
    """The commit that is checked out, with a mark and a hash where src/ has changes of its own."""
    root = Path(__file__).resolve().parents[2]

    def ask(*words: str) -> str:
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True).stdout.strip()

    changes = ask("diff", "HEAD", "--", "src")
    return ask("rev-parse", "--short", "HEAD") + (f"+{abs(hash_of(changes)):x}" if changes else "")


def hash_of(text: str) -> int:
    value = 0
    for byte in text.encode():
        value = (value * 31 + byte) & 0xFFFFFFFF
    return value


def read_rows(path: Path | None, commit: str, how: str) -> dict[str, dict[str, Any]]:
    """The rows of an earlier run of the same commit."""
    if path is None or not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return {row["script"]: row for row in rows if (row["commit"], row["how"]) == (commit, how)}


def find_scripts(pattern: str | None) -> list[Path]:
    paths = sorted(path for path in SCRIPTS.glob("*.py") if not path.name.startswith("_"))
    if pattern is None:
        return paths
    wanted = pattern.split(",")
    return [path for path in paths if any(fnmatch.fnmatch(path.stem, f"*{part}*") for part in wanted)]


def main() -> int:
    ask = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    beside = Path(sys.executable).parent / "hotloop"
    ask.add_argument("--pairs", type=int, default=3)
    ask.add_argument("--only", help="names to run, with * and several separated by commas")
    ask.add_argument("--python", default=sys.executable)
    ask.add_argument("--hotloop", default=str(beside) if beside.exists() else "hotloop")
    ask.add_argument("--json", type=Path, help="append a row a script; scripts that it has for this commit are skipped")
    ask.add_argument(
        "--quick", action="store_true", help="one pair, without the probe; times and memory are not judged"
    )
    args = ask.parse_args()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background job ignores it, and so would scripts
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
    commit, how = find_commit(), "quick" if args.quick else "full"
    known = read_rows(args.json, commit, how)
    print(f"{'script':32} " + " ".join(COLUMNS), flush=True)
    rows = []
    for path in find_scripts(args.only):
        row = known.get(path.stem)
        if row is None:
            kind = read_kind(path, args.python)
            row = try_kind(kind, args.hotloop, pairs=1 if args.quick else args.pairs, quick=args.quick)
            if args.json:
                with open(args.json, "a") as file:
                    file.write(json.dumps({**row, "commit": commit, "how": how}) + "\n")
        rows.append(row)
        print(describe_row(row), flush=True)
    harmed = [row["script"] for row in rows if row["harm"]]
    told = subprocess.run(
        [args.python, "-c", "import sys, torch; print('python', sys.version.split()[0], 'torch', torch.__version__)"],
        capture_output=True,
        text=True,
    ).stdout.strip()
    print(f"{len(rows) - len(harmed)} of {len(rows)} as alone; harmed: {', '.join(harmed) or 'none'}")
    print(f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}; {told}")
    print(f"{datetime.date.today()}, commit {commit}, n = {1 if args.quick else args.pairs} pairs ({how})")
    return int(bool(harmed))


if __name__ == "__main__":
    sys.exit(main())
