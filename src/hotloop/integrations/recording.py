"""What the adapters share: a recording from a framework's first hook to its last, and its findings in a log."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.agent.attach.watching import RUN_VARIABLE
from hotloop.core.errors import UsageError
from hotloop.core.findings import Kind, Severity
from hotloop.core.trace_plan import parse_trace_plan, parse_trace_ranks
from hotloop.monitor import Watch, watch

if TYPE_CHECKING:
    from hotloop.core.report import Report

FORMATS = {".html": "html", ".json": "json", ".md": "markdown", ".txt": "terminal"}
"""Ending of a file -> the renderer that writes it."""
MOST_LOGGED = 5


class FrameworkRecording:
    """Records a training run for an adapter.

    ``log`` is the framework's logger. ``report_to`` is "log", "none", or the path of a file whose ending is in
    FORMATS; or several of them. ``deep``, ``trace``, ``trace_ranks`` and ``nvtx`` are the options of
    ``hotloop.watch``.

    Raises UsageError for a setting that makes no sense. No method raises: a failure is a warning in ``log``.
    """

    def __init__(
        self,
        log: Any,
        report_to: str | Sequence[str] = "log",
        *,
        deep: bool = False,
        trace: str | None = None,
        trace_ranks: str = "all",
        nvtx: bool = False,
    ) -> None:
        targets = (report_to,) if isinstance(report_to, str) else tuple(report_to)
        self._to_log = "log" in targets
        self._files = [check_file(target) for target in targets if target not in ("log", "none")]
        if trace is not None:
            parse_trace_plan(trace)
        parse_trace_ranks(trace_ranks)
        self._log = log
        self._options: dict[str, Any] = {"deep": deep, "trace": trace, "trace_ranks": trace_ranks, "nvtx": nvtx}
        self.watch: Watch | None = None
        self.report: Report | None = None

    def begin(self, folder: str | None = None) -> None:
        """Record from here on: into ``folder``, where rank 0 has said which, else as ``hotloop.watch`` decides.

        A process that records already goes on.
        """
        try:
            if folder is not None:
                os.environ.setdefault(RUN_VARIABLE, folder)  # for a process that multiprocessing started
            self.watch = watch(folder and Path(folder).name, **self._options)
        except Exception as error:
            self._log.warning("hotloop records nothing: %s", error)

    def record_metrics(self, values: Mapping[str, Any]) -> None:
        """Keep numbers that the training logs, such as the loss; other values are left out."""
        from hotloop.agent.attach.agent import current_agent

        agent = current_agent()
        if agent is None:
            return
        try:
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    agent.tell({"kind": "metric", "name": str(name), "value": float(value)})
        except Exception as error:
            self._log.warning("hotloop keeps none of the logged numbers: %s", error)

    def end(self, *files: str) -> str:
        """Read the report of everything recorded so far into ``report``; log it, and write it to ``files`` as well.

        Returns its text; empty if there is none.
        """
        if self.watch is None:
            return ""
        try:
            self.report = self.watch.report()
            if self._to_log:
                log_findings(self._log, self.report)
            for file in (*self._files, *files):
                write_report(self.report, file)
            return draw_report(self.report, "terminal")
        except Exception as error:
            self._log.warning("hotloop cannot report: %s; to try again: %s", error, self.watch.command)
            return ""


def check_file(path: str) -> str:
    """``path``, if a report can be written there. Raises UsageError if its ending is unknown."""
    if Path(path).suffix not in FORMATS:
        raise UsageError(f"no report can be written to {path!r}; give a file that ends in {', '.join(FORMATS)}")
    return path


def log_findings(log: Any, report: Report) -> None:
    """The first findings of ``report``: a warning if the severity is high or medium, else at level info."""
    serious = [one for one in report.findings if one.severity in (Severity.HIGH, Severity.MEDIUM)]
    if not serious:
        log.info("hotloop: %s", report.verdict)
    for finding in report.findings[:MOST_LOGGED]:
        text = f"{finding.severity.value} {'problem' if finding.kind is Kind.FAULT else 'tip'}: {finding.title}"
        if finding.saving is not None:
            text += f"; the fix saves {finding.saving.low_ratio:.0%} to {finding.saving.high_ratio:.0%}"
        if finding.where:
            text += f"; {finding.where[0].file}:{finding.where[0].line}"
        log.log(logging.WARNING if finding in serious else logging.INFO, "hotloop: %s [%s]", text, finding.rule)
    if report.next_command is not None:
        log.info("hotloop: next: %s", report.next_command)


def write_report(report: Report, path: str) -> None:
    """Write ``report`` to ``path`` in the format of its ending. Raises OSError if the file cannot be written."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(draw_report(report, FORMATS[target.suffix]), encoding="utf-8")


def draw_report(report: Report, format_id: str) -> str:
    """``report`` as text of one format, with the manuals of its rules."""
    from hotloop.judge.diagnose import RULES
    from hotloop.show.report import render

    manuals = {rule_id: rule.manual for rule_id, rule in RULES.items()}
    return render(format_id, report, manuals=manuals, width=120, folder=os.getcwd())
