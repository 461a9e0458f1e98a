"""The report of the traces that a run kept (``hotloop run --trace``) -> what they add to the run's own report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hotloop.core.findings import Finding, Skipped
from hotloop.core.report import Health, RankSummary, Report


def describe_kept(traced: Report) -> Health:
    """Where the run's figures of the device are from."""
    steps = traced.step.count if traced.step is not None else 0
    message = f"what the device did is from {steps} recorded steps of the run, traced by torch.profiler"
    return Health(level="info", message=message)


def add_findings(
    found: Sequence[Finding], skipped: Sequence[Skipped], traced: Report | None
) -> tuple[tuple[Finding, ...], tuple[Skipped, ...]]:
    """The run's findings with those of the rules that only its traces could judge."""
    if traced is None:
        return tuple(found), tuple(skipped)
    missing = {one.rule for one in skipped}
    still = {one.rule for one in traced.skipped}
    more = tuple(one for one in traced.findings if one.rule in missing)
    return (*found, *more), tuple(one for one in skipped if one.rule in still)


def add_devices(ranks: Iterable[RankSummary], traced: Report | None) -> tuple[RankSummary, ...]:
    """The ranks with what their device did, where their trace shows it."""
    by_rank = {} if traced is None else {one.rank: one.device for one in traced.ranks if one.device is not None}
    return tuple(replace(one, device=by_rank.get(one.rank, one.device)) for one in ranks)
