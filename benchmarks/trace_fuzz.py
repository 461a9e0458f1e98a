"""Mutations of real trace files -> how many end in anything but columns or one clear error. Resumable.

    python benchmarks/trace_fuzz.py --cases 10000 --state /tmp/trace_fuzz.json

Case k is made from the seed k alone, so a failure is repeated with ``--only k``. Every case runs in a child process
that is given ``--limit`` seconds; a case that takes longer counts as a hang and the child is replaced.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import select
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT.parent / "shared" / "traces"

_MAX_SEED_BYTES = 400_000
"""Larger traces are cut to their beginning and end, so that a case takes milliseconds."""
_TOKENS = (
    b"NaN", b"Infinity", b"-Infinity", b"N/A", b"null", b"true", b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\n",
    b"\x00", b"\xff\xfe", b"1e999", b"-1", b"18446744073709551616", b"0x10", b'"traceEvents": [', b"}, {",
    b'{"ph": "X"}',
    b'"ph": "B"', b'"ph": "E"', b"\xed\xa0\x80", b'"dur": "x"', b'"ts": 0',
)  # fmt: skip


def load_seeds(folder: Path) -> list[bytes]:
    """The texts of the real traces, shortened."""
    seeds: list[bytes] = []
    for path in sorted(folder.rglob("*.json*")):
        if path.parent.name in ("expected", "memory"):
            continue
        raw = path.read_bytes()
        text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        if len(text) > _MAX_SEED_BYTES:
            middle = text.index(b"},", _MAX_SEED_BYTES // 2) + 2
            after = text.find(b"\n", text.index(b"},", len(text) - _MAX_SEED_BYTES // 2) + 2)
            text = text[:middle] + text[after:]
        seeds.append(text)
    return seeds


def make_case(seeds: Sequence[bytes], number: int) -> bytes:
    """The bytes of one case."""
    chance = random.Random(number)
    text = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((1, 1, 2, 5, 20))):
        _MUTATIONS[chance.randrange(len(_MUTATIONS))](text, chance)
    if chance.random() < 0.2:
        packed = bytearray(gzip.compress(bytes(text), 1))
        for _ in range(chance.choice((0, 1, 3))):
            _MUTATIONS[chance.randrange(4)](packed, chance)
        return bytes(packed)
    return bytes(text)


def _place(text: bytearray, chance: random.Random) -> int:
    return chance.randrange(len(text)) if text else 0


def _flip(text: bytearray, chance: random.Random) -> None:
    if text:
        text[_place(text, chance)] ^= 1 << chance.randrange(8)


def _truncate(text: bytearray, chance: random.Random) -> None:
    del text[_place(text, chance) :]


def _remove(text: bytearray, chance: random.Random) -> None:
    at = _place(text, chance)
    del text[at : at + chance.choice((1, 2, 10, 1000))]


def _repeat(text: bytearray, chance: random.Random) -> None:
    at = _place(text, chance)
    text[at:at] = text[at : at + chance.choice((1, 50, 5000))]


def _insert(text: bytearray, chance: random.Random) -> None:
    at = _place(text, chance)
    text[at:at] = chance.choice(_TOKENS)


def _retype(text: bytearray, chance: random.Random) -> None:
    """Another value behind some colon."""
    at = text.find(b":", _place(text, chance))
    if at >= 0:
        end = min((found for found in (text.find(mark, at) for mark in (b",", b"}", b"\n")) if found > 0), default=at)
        text[at + 1 : end] = chance.choice(_TOKENS)


def _move(text: bytearray, chance: random.Random) -> None:
    at, to = _place(text, chance), _place(text, chance)
    piece = text[at : at + 200]
    del text[at : at + 200]
    text[to:to] = piece


_MUTATIONS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip, _truncate, _remove, _repeat, _insert, _insert, _retype, _retype, _move,
)  # fmt: skip


def judge_case(path: Path, content: bytes) -> str:
    """'columns', 'error', or a traceback."""
    from hotloop.core.errors import HotloopError, InvariantError
    from hotloop.trace.formats.kineto import read_kineto

    path.write_bytes(content)
    try:
        (trace,) = read_kineto(path, window_bytes=1 << 16)
        if len(trace) and (int(trace.duration_ns.min()) < 0 or int(trace.name.max()) >= len(trace.names)):
            return "impossible columns"
    except InvariantError:
        return traceback.format_exc()
    except HotloopError as error:
        return "error" if "\n" not in str(error) else f"more than one line: {error}"
    except Exception:  # what the fuzz is here to find
        return traceback.format_exc()
    return "columns"


def run_child(folder: Path) -> None:
    """Case numbers on standard input, one JSON line each on standard output."""
    seeds = load_seeds(TRACES)
    with tempfile.TemporaryDirectory() as scratch:
        for line in sys.stdin:
            print(json.dumps(judge_case(Path(scratch) / "case.json", make_case(seeds, int(line)))), flush=True)


class Child:
    """A process that judges cases, replaced when one hangs or kills it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def judge(self, number: int, limit_s: float) -> str:
        if self._process is None:
            environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                [sys.executable, __file__, "--child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env=environment,
            )  # fmt: skip
            limit_s += 60  # the first case waits for imports and seeds
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], limit_s)
        line = self._process.stdout.readline() if ready else ""
        if line:
            answer: str = json.loads(line)
            return answer
        self.stop()
        return "crash" if ready else "hang"

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--limit", type=float, default=10.0, help="seconds per case")
    parser.add_argument("--minutes", type=float, help="stop after so long; a later call goes on from --state")
    parser.add_argument("--state", type=Path, help="JSON file that remembers what was done")
    parser.add_argument("--only", type=int, help="run this case alone")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        run_child(TRACES)
        return 0
    state: dict[str, Any] = {"next": 0, "counts": {}, "failures": {}}
    if given.state and given.state.exists():
        state = json.loads(given.state.read_text())
    numbers = [given.only] if given.only is not None else range(state["next"], given.cases)
    counts = Counter(state["counts"])
    child = Child()
    end_s = time.monotonic() + given.minutes * 60 if given.minutes else float("inf")
    try:
        for number in numbers:
            outcome = child.judge(number, given.limit)
            fine = outcome in ("columns", "error")
            counts[outcome if fine or outcome in ("hang", "crash") else "traceback"] += 1
            if not fine:
                state["failures"][str(number)] = outcome
                print(f"case {number}: {outcome}", flush=True)
            state["next"], state["counts"] = number + 1, dict(counts)
            if given.state and given.only is None and (number % 100 == 99 or not fine):
                given.state.write_text(json.dumps(state, indent=1))
            if time.monotonic() > end_s:
                break
    finally:
        child.stop()
    if given.state and given.only is None:
        given.state.write_text(json.dumps(state, indent=1))
    print(f"{sum(counts.values())} cases: {dict(counts)}")
    return 1 if state["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
