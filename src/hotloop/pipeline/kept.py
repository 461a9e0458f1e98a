"""Traces that a run kept (``hotloop run --trace``) -> what only a timeline of the device can show, for its report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hotloop.core.errors import HotloopError
from hotloop.core.findings import Finding, Skipped
from hotloop.core.report import Device, Health, RankSummary, Report

from .traces import report_traces


@dataclass(frozen=True, slots=True, kw_only=True)
class Timelines:
    """The report of the kept traces (None without any that can be read), and what is to be said of them."""

    report: Report | None = None
    health: tuple[Health, ...] = ()

    @property
    def device(self) -> Device | None:
        return self.report.device if self.report is not None else None


def read_kept_traces(folder: Path) -> Timelines:
    """Read ``folder/traces``. A trace that cannot be read costs a line of health, not the report."""
    traces = folder / "traces"
    if not traces.is_dir() or not any(traces.iterdir()):
        return Timelines()
    try:
        report = report_traces([traces])
    except HotloopError as error:
        return Timelines(health=(Health(level="warning", message=f"the kept traces were not judged: {error}"),))
    if report.device is None:
        return Timelines()  # nothing in them that the recording does not show better
    steps = report.step.count if report.step is not None else 0
    message = f"what the device did is from {steps} recorded steps of the run, traced by torch.profiler"
    return Timelines(report=report, health=(Health(level="info", message=message),))


def add_findings(
    found: Sequence[Finding], skipped: Sequence[Skipped], timelines: Timelines
) -> tuple[tuple[Finding, ...], tuple[Skipped, ...]]:
    """The run's findings with those of the rules that only its traces could judge."""
    report = timelines.report
    if report is None:
        return tuple(found), tuple(skipped)
    missing = {one.rule for one in skipped}
    still = {one.rule: one for one in report.skipped}
    more = tuple(one for one in report.findings if one.rule in missing)
    left = tuple(one for one in skipped if one.rule in still)
    return (*found, *more), left


def add_devices(ranks: Iterable[RankSummary], timelines: Timelines) -> tuple[RankSummary, ...]:
    """The ranks with what their device did, where their trace shows it."""
    report = timelines.report
    by_rank = {} if report is None else {one.rank: one.device for one in report.ranks if one.device is not None}
    return tuple(replace(one, device=by_rank.get(one.rank, one.device)) for one in ranks)
