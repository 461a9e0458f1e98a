"""hotloop trace: the same diagnosis from files that a profiler wrote."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hotloop.cli.options import WORKERS, option, output_options
from hotloop.cli.show import (
    check_counts,
    check_outputs,
    choose_workers,
    has_serious_fault,
    show_report,
)
from hotloop.core.errors import UsageError
from hotloop.core.what_if_changes import list_forms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hotloop.evidence.trace.byte_source import Progress

SORTS = ("device_time", "host_self", "flops", "count")


ORDER, SUMMARY = 4, "diagnose a training run from profiler files"


class _AskChange(argparse.Action):
    """Adds a change to those asked for; ``help`` shows all that there are and ends, as ``--help`` does."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        if value == "help":
            from hotloop.core.what_if_changes import explain_forms

            sys.stdout.write(explain_forms())
            parser.exit()
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), value])


ABOUT = {
    "description": (
        "Read the traces of one training run: torch.profiler's Kineto JSON (plain or .gz) or the SQLite export of "
        "Nsight Systems, as one file, several files, or a folder with one file per rank. Or read a "
        "memory snapshot (.pickle)."
    )
}
OPTIONS = (
    option("paths", nargs="+", metavar="PATH", help="trace files, folders with trace files, or URLs (s3://...)"),
    *output_options(),
    option("--top", type=int, default=10, metavar="N", help="number of rows in long tables (default: 10)"),
    option(
        "--sort",
        choices=SORTS,
        default="device_time",
        help="order of the operators (default: device_time, the time of the kernels that an operator launched itself)",
    ),
    option(
        "--what-if",
        action=_AskChange,
        default=[],
        metavar="CHANGE",
        help=f"forecast the step after a change; may be repeated. One of {list_forms()}; '--what-if help' explains "
        "each form and its assumptions",
    ),
    option(
        "--target",
        metavar="NAME=RATIO",
        action="append",
        default=[],
        help="the lowest utilization that you accept, such as utilization=0.8, sm_active=0.5 or mfu=0.4; a lower "
        "value is a finding",
    ),
    WORKERS,
    option("--exit-zero", action="store_true", help="exit with 0 even if a serious problem was found"),
)


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.evidence.trace.memory_files import is_memory_file

    check_outputs(arguments.json, arguments.html)
    check_counts(arguments, "top", "workers")
    _check_targets(arguments)
    _check_changes(arguments)
    if any(is_memory_file(path) for path in arguments.paths):
        return _report_memory(arguments)
    import tempfile

    with tempfile.TemporaryDirectory(prefix="hotloop-") as fetched:
        progress = _show_progress() if sys.stderr.isatty() and not arguments.quiet else None
        paths = [_fetch(path, Path(fetched) / str(at), progress) for at, path in enumerate(arguments.paths)]
        return _report(arguments, paths, progress)


def _report(arguments: argparse.Namespace, paths: list[str | Path], progress: Progress | None) -> int:
    from hotloop.core.redact import redact_command
    from hotloop.core.settings import load_settings
    from hotloop.core.utilization import parse_targets
    from hotloop.evidence.analyze.timeline.reduce import ReduceOptions
    from hotloop.pipeline.traces import report_traces

    report = report_traces(
        paths,
        options=ReduceOptions(
            top=max(200, arguments.top),
            op_sort=arguments.sort,
            what_if=tuple(arguments.what_if),
        ),
        workers=choose_workers(arguments),
        progress=progress,
        command=redact_command(("hotloop", "trace", *arguments.paths)),
        targets=parse_targets(load_settings().add_targets(arguments.target)),
    )
    show_report(report, arguments, sys.stdout)
    return 1 if has_serious_fault(report) and not arguments.exit_zero else 0


def _check_targets(arguments: argparse.Namespace) -> None:
    """Raises UsageError before any work is done: an output must not replace a trace."""
    paths = {Path(path).resolve() for path in arguments.paths}
    for name in ("json", "html"):
        given = getattr(arguments, name)
        if given not in (None, "-") and Path(given).resolve() in paths:
            raise UsageError(f"--{name} {given} would overwrite the trace; give another name")


def _check_changes(arguments: argparse.Namespace) -> None:
    if not arguments.what_if:
        return
    from hotloop.evidence.analyze.timeline.what_if import parse_change

    for change in arguments.what_if:
        parse_change(change)


def _report_memory(arguments: argparse.Namespace) -> int:
    from hotloop.core.redact import redact_command
    from hotloop.evidence.trace.memory_files import is_memory_file
    from hotloop.pipeline.traces import report_memory_files

    others = [path for path in arguments.paths if not is_memory_file(path)]
    if others:
        raise UsageError(f"{others[0]} is not a memory snapshot; use a separate command for it")
    missing = [path for path in arguments.paths if not Path(path).is_file()]
    if missing:
        raise UsageError(f"{missing[0]} is not a file; give a snapshot (.pickle)")
    if arguments.what_if:
        raise UsageError("--what-if cannot be used with memory files, which contain no steps or trace events")
    command = redact_command(("hotloop", "trace", *arguments.paths))
    show_report(report_memory_files([Path(path) for path in arguments.paths], command), arguments, sys.stdout)
    return 0


def _fetch(path: str, folder: Path, progress: Progress | None) -> str | Path:
    from hotloop.evidence.trace.inputs import fetch_remote, is_remote

    return fetch_remote(path, folder, progress) if is_remote(path) else path


def _show_progress() -> Progress:
    """A bar on standard error that is wiped when the last byte was read."""

    def show(done_bytes: int, total_bytes: int) -> None:
        ratio = min(1.0, done_bytes / max(1, total_bytes))
        bar = "#" * round(ratio * 30)
        line = f"\rreading [{bar:<30}] {ratio:4.0%} of {total_bytes / 2**20:.0f} MiB"
        sys.stderr.write(line if ratio < 1 else "\r" + " " * len(line) + "\r")
        sys.stderr.flush()

    return show
