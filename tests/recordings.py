"""A recording that a reader sees at once, run folders of recorded steps, and events of traces, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hotloop.agent.replay.recording_writer import RecordingWriter
from hotloop.core.recording import CLOSED_BY_OPTIMIZER, STEP_FIELDS, UNKNOWN

MS = 1_000_000


class InstantWriter(RecordingWriter):
    def __init__(self, path: Path | str, **limits: int) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        super().__init__(Path(path), **limits)
        self.flush()

    def write_row(self, row: Sequence[int]) -> None:
        super().write_row(row)
        self.flush()

    def write_fact(self, fact: Mapping[str, Any]) -> None:
        super().write_fact(fact)
        self.flush()


def step_row(index: int, start_ns: int, length_ns: int, **more: int) -> list[int]:
    """A step of one forward and one backward, as a training's own writer writes it."""
    values = {"index": index, "rows_merged": 1, "closed_by": CLOSED_BY_OPTIMIZER, "forwards": 1, "backwards": 1}
    values |= {"start_ns": start_ns, "end_ns": start_ns + length_ns, **more}
    return [values.get(name, 0) for name in STEP_FIELDS]


def record(
    folder: Path,
    forward_ms: list[float],
    *,
    ranks: int = 1,
    samples: int | list[int] = UNKNOWN,
    device: str = "cpu",
    slower_by_rank_ms: float = 0.0,
) -> Path:
    """A run folder whose steps have these forwards, a backward of 6 ms and a wait of 1 ms; 60 warm steps come first."""
    (folder / "processes").mkdir(parents=True)
    (folder / "run.json").write_text('{"schema": "hotloop.run/1", "started_wall_s": 10.0}')
    (folder / "outcome.json").write_text('{"exit_code": 0}')
    for rank in range(ranks):
        writer = InstantWriter(str(folder / "processes" / f"box-{rank + 1}-0-0.hlr"))
        about = {"host": "box", "pid": rank + 1, "ppid": 99, "rank": rank, "world_size": ranks}
        writer.write_fact({"kind": "process", "t": 0, "argv": ["t.py"], "anchor_wall_s": 5.0, **about})
        writer.write_fact({"kind": "model", "t": 0, "id": 1, "class": "Net", "device": device, "parameters": 9})
        at = 0
        for index, forward in enumerate(forward_ms):
            times = {
                "forward_ns": round((forward + slower_by_rank_ms * rank) * MS),
                "backward_ns": 6 * MS,
                "input_wait_ns": MS,
            }
            times["samples"] = samples if isinstance(samples, int) else samples[index]
            length_ns = round((forward + slower_by_rank_ms * rank) * MS) + 7 * MS
            writer.write_row(step_row(index, at, length_ns, tokens=UNKNOWN, batches=1, micro_batches=1, **times))
            at += length_ns
        writer.close()
    return folder


def event(category: str, name: str, start_us: float, length_us: float, tid: Any = 1, **args: Any) -> dict[str, Any]:
    """An event of a profiler's trace."""
    at = {"pid": 7, "tid": tid, "ts": start_us, "dur": length_us}
    return {"ph": "X", "cat": category, "name": name, **at, "args": args}
