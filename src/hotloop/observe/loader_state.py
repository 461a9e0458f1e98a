"""What is known of one DataLoader object."""

from __future__ import annotations

from typing import Any

from hotloop.core.recording import UNKNOWN

from .workers import FetchTotals


class LoaderState:
    """What is known of one DataLoader object."""

    __slots__ = (
        "batch_size",
        "batches",
        "draws",
        "facts",
        "feeds_backward",
        "first_wait_ns",
        "first_waits",
        "fresh",
        "id",
        "iterator_ns",
        "iterators",
        "last_padded",
        "last_samples",
        "last_shape",
        "lists_samples",
        "main",
        "pending",
        "pending_samples",
        "sample_dim",
        "sequence_key",
        "wait_ns",
        "whole_batch",
        "worker_pids",
    )

    def __init__(self, loader_id: int, described: dict[str, Any] | None, batch_size: int | None) -> None:
        self.id = loader_id
        self.facts = described
        self.batch_size = batch_size
        """Samples of its first batch, where the loader makes the batches."""
        self.sample_dim: int | None = None
        self.whole_batch = 0
        """Length of a leading dimension that needs no second look: the batch size, once it was seen there."""
        self.last_samples = 0
        self.last_padded = UNKNOWN
        self.last_shape: tuple[int, ...] = ()
        """That of the last batch, where another one of this shape holds as many samples and tokens; empty where not."""
        self.sequence_key: str | None = None
        """The name of what holds the sequences of its batches, once tokens were counted in one (batches.py)."""
        self.lists_samples = False
        """Whether its batches list their samples one by one, so that no dimension counts them."""
        self.feeds_backward: bool | None = None
        self.batches = self.iterators = self.pending = self.pending_samples = 0
        self.iterator_ns = self.first_wait_ns = self.first_waits = self.wait_ns = 0
        self.fresh = False
        self.draws: bool | None = None
        """Whether reading a batch moved a global random generator; None until the training process has read one."""
        self.main = FetchTotals()
        self.worker_pids: set[int] = set()
