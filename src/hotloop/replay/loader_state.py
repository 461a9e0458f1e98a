"""What is known of one DataLoader object."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class FetchTotals:
    """Totals since the start, in ns, over ``batches`` batches."""

    batches: int = 0
    fetch_ns: int = 0
    fetch_cpu_ns: int = 0
    collate_ns: int = 0

    def add(self, batches: int, fetch_ns: int, fetch_cpu_ns: int, collate_ns: int) -> None:
        self.batches += batches
        self.fetch_ns += fetch_ns
        self.fetch_cpu_ns += fetch_cpu_ns
        self.collate_ns += collate_ns


@dataclass(slots=True, eq=False)
class LoaderState:
    """``batch_size`` are the samples of its first batch, where the loader makes the batches; ``id`` numbers loaders in
    order of their first iterator, UNKNOWN for one of which no facts were told."""

    id: int
    facts: dict[str, Any] | None = None
    batch_size: int | None = None
    sample_dim: int | None = None
    holds_sequences: bool = False
    lists_samples: bool = False
    """Whether its batches list their samples one by one, so that no dimension counts them."""
    feeds_backward: bool | None = None
    draws: bool | None = None
    """Whether reading a batch moved a global random generator; None until the training process has read one."""
    last_samples: int = 0
    newest_iterator: int = 0
    interleaves: bool = False
    """Whether an iterator of it went on after a newer one had begun (``zip`` of two)."""
    batches: int = 0
    iterators: int = 0
    pending: int = 0
    pending_samples: int = 0
    iterator_ns: int = 0
    first_wait_ns: int = 0
    first_waits: int = 0
    wait_ns: int = 0
    is_fresh: bool = False
    main: FetchTotals = field(default_factory=FetchTotals)
    worker_pids: set[int] = field(default_factory=set)

    def stats(self, workers: FetchTotals) -> dict[str, Any]:
        """What it gave so far, as a fact of which only the newest counts."""
        total = workers if workers.batches else self.main
        known = total.batches > 0
        return {
            "kind": "loader_stats",
            "id": self.id,
            "batches": self.batches,
            "iterators": self.iterators,
            "feeds_backward": self.feeds_backward,
            "iterator_ns": self.iterator_ns,
            "first_wait_ns": self.first_wait_ns,
            "first_waits": self.first_waits,
            "wait_ns": self.wait_ns,
            "fetch_ns": total.fetch_ns if known else None,
            "fetch_cpu_ns": total.fetch_cpu_ns if known else None,
            "collate_ns": total.collate_ns if known else None,
            "fetch_batches": total.batches,
            "counts_run_queue": False,
            "draws": self.draws,
        }
