"""Run folders of nodes, written by a training's own writer, and how many rows they have."""

from __future__ import annotations

import json
import time
from pathlib import Path

from hotloop.core.recording import FIELD
from hotloop.evidence.trace.recording import read_run
from hotloop.pipeline.recordings import count_rows
from hotloop.remote.store import RemoteStore
from hotloop.remote.uploader import Uploader
from tests.recordings import InstantWriter, step_row

STEP_NS = 10_000_000


class Node:
    """A node of a run: ``train`` adds steps to the recording of its one rank."""

    def __init__(self, folder: Path, rank: int, *, host: str = "box", pid: int = 7, began_wall_s: float = 0.0) -> None:
        self.folder = folder
        (folder / "processes").mkdir(parents=True)
        began_wall_s = began_wall_s or time.time()
        manifest = {"schema": "hotloop.run/1", "command": ["train.py"], "started_wall_s": began_wall_s, "pid": 1}
        (folder / "run.json").write_text(json.dumps(manifest))
        self.rows_count = 0
        self._writer = InstantWriter(str(folder / "processes" / f"{host}-{pid}-{rank}-0.hlr"))
        fact = {"kind": "process", "host": host, "pid": pid, "rank": rank, "local_rank": 0, "world_size": 2}
        self._writer.write_fact({**fact, "t": 0, "anchor_wall_s": began_wall_s})

    def train(self, steps: int) -> None:
        for index in range(self.rows_count, self.rows_count + steps):
            self._writer.write_row(step_row(index, index * STEP_NS, STEP_NS, backward_ns=STEP_NS))
        self.rows_count += steps
        self._writer.flush()

    def end(self) -> None:
        self._writer.close()
        (self.folder / "outcome.json").write_text(json.dumps({"exit_code": 0, "signal": None}))

    def uploader(self, url: str, *, run_id: str | None = None, is_running: bool = True, attempts: int = 8) -> Uploader:
        store = RemoteStore(url, attempts=attempts)
        return Uploader(self.folder, store, run_id=run_id, count_rows=count_rows, is_running=is_running)


def upload(node: Node, url: str, *, run_id: str | None = None, ended: bool = True) -> Uploader:
    uploader = node.uploader(url, run_id=run_id, is_running=not ended)
    uploader.upload(ended=ended)
    return uploader


def count_ranks(folder: Path) -> dict[int, int]:
    """Rank -> rows of a run folder; rows that a reader misses are not counted."""
    found: dict[int, int] = {}
    for process in read_run(folder).processes:
        rank = process.process["rank"]
        found[rank] = found.get(rank, 0) + int(process.rows[:, FIELD["rows_merged"]].sum())
    return found
