"""A recording and the stacks that `hotloop run` read from outside -> a recording with the better samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.core.frames import decode_object
from hotloop.core.recording import FIELD, SAMPLES_SUFFIX

if TYPE_CHECKING:
    from .recording import ProcessRecording

_MAX_BYTES = 64 << 20


def add_outside_samples(process: ProcessRecording, path: Path) -> ProcessRecording:
    """``process`` with the samples beside ``path``, a recording's name, in place of its own where these are fewer.

    They have no bias: nobody waited for the interpreter's lock.
    """
    lines = _read_lines(path.with_suffix(SAMPLES_SUFFIX))
    if not lines:
        return process
    facts = list(process.facts)
    outside = [line for line in lines if line.get("kind") == "samples"]
    own = [fact for fact in facts if fact.get("kind") == "samples"]
    if outside and _count(outside) >= _count(own):
        cpu_ns = outside[-1].get("cpu_ns")
        facts = [_with_sampler(fact, cpu_ns) for fact in facts if fact.get("kind") not in ("samples", "sampling")]
        facts += [line | {"rows": _rows_of(line, process.rows), "outside": True} for line in outside]
    facts += [{"kind": "sampling", "reason": line.get("reason")} for line in lines if line.get("kind") == "refused"]
    return replace(process, facts=tuple(facts))


def _read_lines(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES)
    except OSError:
        return []
    found = (decode_object(line) for line in text.splitlines())
    return [line for line in found if line is not None]


def _count(facts: Sequence[Mapping[str, Any]]) -> int:
    counts = [item[3] for fact in facts for item in _items(fact) if isinstance(item, (list, tuple)) and len(item) == 4]
    return sum(count for count in counts if isinstance(count, int))


def _items(fact: Mapping[str, Any]) -> Sequence[Any]:
    items = fact.get("counts")
    return items if isinstance(items, (list, tuple)) else ()


def _rows_of(line: Mapping[str, Any], rows: Any) -> list[int]:
    """First and last row during which a line's samples were taken, counted on where they came after the last one; none
    of them for a line that does not say when."""
    times = [line.get("from_ns"), line.get("until_ns")]
    if not len(rows) or not all(isinstance(t, int) and abs(t) < 1 << 62 for t in times):
        return []
    at = np.searchsorted(rows[:, FIELD["end_ns"]], np.array(times, dtype=np.int64))
    last = len(rows) - 1
    return [int(rows[min(k, last), FIELD["index"]]) + max(0, int(k) - last) for k in at]


def _with_sampler(fact: dict[str, Any], cpu_ns: Any) -> dict[str, Any]:
    """What sampling from outside cost counts with the agent's own thread."""
    own_ns = fact.get("sampler_ns")
    if fact.get("kind") != "overhead" or not isinstance(cpu_ns, int) or not isinstance(own_ns, int):
        return fact
    return fact | {"sampler_ns": own_ns + max(0, cpu_ns)}
