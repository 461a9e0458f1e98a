"""Finished processes of trials on disk: a process that was run for the same study is never run again."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from .trials import Ran, ran_from_json, ran_to_json


class Store:
    """One sqlite file. A study is the hash of command, code, machine and limits; a process is one of its strategies'.

    Every write is a transaction of its own, so that a kill leaves the file whole.
    """

    def __init__(self, path: Path) -> None:
        self.has_run = False
        """Whether this tuning ran a process itself: from then on nothing that is stored stands beside what runs."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(path, timeout=30, isolation_level=None)
        self._database.execute("pragma journal_mode=wal")
        self._database.execute(
            "create table if not exists process"
            " (study text, strategy text, sequence integer, ran text, primary key (study, strategy, sequence))"
        )
        self._database.execute("create table if not exists study (study text primary key, steps integer)")

    def keep_steps(self, study: str, steps: int) -> int:
        """The steps of the study's processes: those of its first tuning, which ``steps`` are when it is new."""
        self._database.execute("insert or ignore into study values (?, ?)", (study, steps))
        (kept,) = self._database.execute("select steps from study where study = ?", (study,)).fetchone()
        return int(kept)

    def get(self, study: str, strategy: str, sequence: int) -> Ran | None:
        row = self._database.execute(
            "select ran from process where study = ? and strategy = ? and sequence = ?", (study, strategy, sequence)
        ).fetchone()
        if row is None:
            return None
        try:
            return ran_from_json(row[0])
        except ValueError:
            return None

    def put(self, study: str, strategy: str, sequence: int, ran: Ran) -> None:
        self._database.execute(
            "insert or replace into process values (?, ?, ?, ?)", (study, strategy, sequence, ran_to_json(ran))
        )

    def close(self) -> None:
        self._database.close()
