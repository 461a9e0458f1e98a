"""A training of several hosts, step by step -> recordings whose clocks are known to be wrong, for tests of analyze."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .synthetic import MS, FakeRecording, Rows, process_fact

START_S = 1_700_000_000.0


@dataclass(frozen=True)
class Host:
    """``offset_s`` is how far its wall clock is ahead, ``drift_ppm`` how much faster its clocks run."""

    name: str
    offset_s: float = 0.0
    drift_ppm: float = 0.0
    ranks: int = 2
    stops_after: int | None = None
    """Killed behind this step: no end of its ranks is recorded."""


def record_hosts(
    hosts: Sequence[Host],
    steps: int = 200,
    *,
    begin_s: float = 0.0,
    seed: int = 0,
    compute_ms: float = 8.0,
    transfer_ms: float = 0.5,
    jitter_ms: float = 0.2,
    slow: Mapping[int, float] | None = None,
    timeout_ms: float = 0.0,
    goes_on: bool = False,
    first_state_step: int | None = None,
    ended: str = "completed",
    saves_after: int | None = None,
    exchanges: bool = True,
    **process: Any,
) -> list[FakeRecording]:
    """One recording a rank. Every step, all ranks compute on their own and leave the exchange together, each up to
    ``transfer_ms`` after the last one came; then each steps its optimizer. ``slow`` adds ms to a rank's computing.

    When a host stops, the others wait ``timeout_ms`` for it, then end, or go on without it where ``goes_on``.
    """
    draw = random.Random(seed)
    world = sum(host.ranks for host in hosts)
    homes = [(host, local) for host in hosts for local in range(host.ranks)]
    rows = [Rows() for _ in homes]
    waits: list[list[float]] = [[] for _ in homes]
    now = [begin_s * 1e9 + draw.uniform(0, 2) * MS for _ in range(world)]  # true time, ns
    began = list(now)
    alive = set(range(world))
    waited = False
    for step in range(steps):
        stopping = {r for r in alive if homes[r][0].stops_after == step}
        alive -= stopping
        if stopping and not goes_on:
            break
        ready = {}
        for rank in sorted(alive):
            took = compute_ms + abs(draw.gauss(0, jitter_ms)) + (slow or {}).get(rank, 0.0)
            ready[rank] = now[rank] + took * MS
        last = max(ready.values()) + (timeout_ms * MS if stopping and not waited else 0.0)
        waited = waited or bool(stopping)
        for rank in sorted(alive):
            left = last + draw.uniform(0.2, 1.0) * transfer_ms * MS
            optimizer = (0.3 + abs(draw.gauss(0, jitter_ms / 4))) * MS
            host = homes[rank][0]
            rate = 1.0 + host.drift_ppm * 1e-6
            # Times of the rows are differences of absolute ones, so that nothing is rounded away.
            zero = began[rank]
            marks = [round((t - zero) * rate) for t in (now[rank], ready[rank], left, left + optimizer)]
            marks[0] = rows[rank].clock_ns
            backward, waiting = round(0.6 * (marks[1] - marks[0])), marks[2] - marks[1]
            waits[rank].append(waiting)
            rows[rank].step(
                input_wait_ns=0,
                forward_ns=marks[1] - marks[0] - backward,
                backward_ns=backward + waiting,
                optimizer_ns=marks[3] - marks[2],
                synced_backwards=1,
                checkpoints=int(step == saves_after and rank == 0),
            )
            now[rank] = left + optimizer
    recordings = []
    for rank, (host, local) in enumerate(homes):
        is_killed = host.stops_after is not None and host.stops_after < steps
        facts: list[dict[str, Any]] = []
        if exchanges:
            facts.append({"kind": "ddp", "parameter_bytes": 4_000_000, "bucket_sizes": [4_000_000], "backend": "gloo"})
            facts += [
                {
                    "kind": "ddp_stats",
                    "row": row,
                    "forward_ns": 3 * MS,
                    "backward_compute_ns": 5 * MS,
                    "comm_ns": wait,
                    "overlap_ns": 0,
                }
                for row, wait in enumerate(waits[rank])
            ]
        if first_state_step is not None:
            facts.append({"kind": "optimizer", "index": 0, "class": "AdamW", "state_steps": first_state_step + 1})
        if not is_killed:
            if len(rows[rank].rows) < steps:
                rows[rank].end(backward_ns=round(timeout_ms * MS))
            facts.append({"kind": "end", "ended": ended})
        rate = 1.0 + host.drift_ppm * 1e-6
        recordings.append(
            FakeRecording(
                rows=rows[rank].array(),
                process=process_fact(
                    **{
                        "host": host.name,
                        "pid": 100 + local,
                        "ppid": 50,
                        "rank": rank,
                        "local_rank": local,
                        "world_size": world,
                        "local_world_size": host.ranks,
                        "anchor_wall_s": START_S + host.offset_s + began[rank] * 1e-9 * rate,
                        "run_id": "job",
                        **process,
                    }
                ),
                facts=facts,
                closed=not is_killed,
            )
        )
    return recordings
