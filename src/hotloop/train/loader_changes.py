"""A DataLoader -> the same one with a technique applied to it, for scripts that name the technique themselves."""

from __future__ import annotations

from typing import TypeVar

from hotloop.apply.api import apply_strategy
from hotloop.core.errors import UsageError
from hotloop.core.findings import Value
from hotloop.core.strategy import Choice, Strategy

L = TypeVar("L")


def group_by_length(loader: L, *, mega_batches: int = 50, measure_s: float = 10.0) -> L:
    """The DataLoader, whose batches hold samples of similar length from now on (technique group-by-length).

    Raises UsageError with the reason where its order must stay: leave the call out then.
    """
    return _change(loader, "group-by-length", {"mega_batches": mega_batches, "measure_s": measure_s})


def cache_samples(loader: L, *, most_bytes: int | None = None, folder: str | None = None) -> L:
    """The DataLoader, whose data set returns kept samples from the second epoch on (technique cache-samples).

    Raises UsageError with the reason where samples cannot be kept: leave the call out then.
    """
    return _change(loader, "cache-samples", {"most_bytes": most_bytes, "folder": folder})


def _change(loader: L, technique: str, settings: dict[str, Value]) -> L:
    given = {name: value for name, value in settings.items() if value is not None}
    applied = apply_strategy(Strategy(choices=(Choice(technique=technique, settings=given),)), loader=loader)
    for record in applied.records:
        if record.status != "applied":
            raise UsageError(f"{technique.replace('-', '_')}: {record.detail}; leave the call out")
    changed: L = applied.loader
    return changed
