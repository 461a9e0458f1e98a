"""hotloop trace: the same diagnosis from files that a profiler wrote."""

from __future__ import annotations

import argparse
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from hotloop.trace.source import Progress

SORTS = ("device_time", "host_self", "self_memory", "flops", "count")


def add_parser(subparsers: Any, text: str) -> None:
    parser = subparsers.add_parser(
        "trace",
        help=text,
        description="Read the traces of one training: torch.profiler's Kineto JSON (plain or .gz) or the SQLite export "
        "of Nsight Systems, one file, several, or a folder with a file for each rank; or a memory snapshot (.pickle).",
    )
    from hotloop.cli.show import add_output_options

    parser.add_argument("paths", nargs="+", metavar="PATH", help="trace files, folders of them, or URLs (s3://...)")
    add_output_options(parser, json_help="write the report as JSON to FILE, or - for standard output")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="rows of the long tables (default: 10)")
    parser.add_argument("--sort", choices=SORTS, default="device_time", help="order of the operators")
    parser.add_argument(
        "--definitions",
        choices=("default", "names"),
        default="default",
        help="names: tell communication by kernel names alone, as HolisticTraceAnalysis does",
    )
    parser.add_argument(
        "--what-if",
        action="append",
        default=[],
        metavar="CHANGE",
        help="forecast the step after a change, such as no-input-wait, loader-workers=4, faster-matmuls=2, "
        "free-communication, fused-launches=4 or faster=3:REGEX; may be repeated",
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes that read (default: one for each core)")
    parser.add_argument("--cache", metavar="FOLDER", help="keep the decoded columns there, not beside the traces")
    parser.add_argument("--no-cache", action="store_true", help="leave no decoded columns behind")
    parser.add_argument("--exit-zero", action="store_true", help="exit with 0 even when a serious fault was found")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.analyze.timeline.reduce import ReduceOptions
    from hotloop.analyze.timeline.what_if import parse_change
    from hotloop.cli.show import check_outputs, has_serious_fault, show_report
    from hotloop.core.errors import UsageError
    from hotloop.core.redact import redact_command
    from hotloop.pipeline.memory import is_memory_file
    from hotloop.pipeline.traces import report_traces

    check_outputs(arguments.json, arguments.html)
    for name in ("top", "workers"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} {value}: give a number of at least 1")
    if any(is_memory_file(path) for path in arguments.paths):
        return _report_memory(arguments)
    for change in arguments.what_if:
        parse_change(change)
    options = ReduceOptions(
        definitions=arguments.definitions,
        top=max(200, arguments.top),
        op_sort=arguments.sort,
        what_if=tuple(arguments.what_if),
    )
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory(prefix="hotloop-") as fetched:
        progress = _show_progress() if sys.stderr.isatty() and not arguments.quiet else None
        report = report_traces(
            [_fetch(path, Path(fetched), progress) for path in arguments.paths],
            options=options,
            workers=arguments.workers or _count_cores(),
            progress=progress,
            cache_folder=Path(arguments.cache) if arguments.cache else None,
            write_cache=not arguments.no_cache,
            command=redact_command(("hotloop", "trace", *arguments.paths)),
        )
    quiet = arguments.quiet or arguments.json == "-"
    show_report(
        report,
        json_path=arguments.json,
        html_path=arguments.html,
        quiet=quiet,
        stream=sys.stdout,
        top=arguments.top,
    )
    return 1 if has_serious_fault(report) and not arguments.exit_zero else 0


def _report_memory(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from hotloop.cli.show import show_report
    from hotloop.core.errors import UsageError
    from hotloop.core.redact import redact_command
    from hotloop.pipeline.memory import is_memory_file, report_memory_files

    others = [path for path in arguments.paths if not is_memory_file(path)]
    if others:
        raise UsageError(f"{others[0]} is no memory snapshot or timeline: give it to a command of its own")
    missing = [path for path in arguments.paths if not Path(path).is_file()]
    if missing:
        raise UsageError(f"{missing[0]} is no file; give a snapshot (.pickle) or a memory timeline (.raw.json.gz)")
    if arguments.what_if:
        raise UsageError("--what-if: a memory file has no steps that could be re-timed")
    show_report(
        report_memory_files(list(map(Path, arguments.paths)), redact_command(("hotloop", "trace", *arguments.paths))),
        json_path=arguments.json,
        html_path=arguments.html,
        quiet=arguments.quiet or arguments.json == "-",
        stream=sys.stdout,
        top=arguments.top,
    )
    return 0


def _fetch(path: str, folder: Path, progress: Progress | None) -> str | Path:
    from hotloop.trace.inputs import fetch_remote, is_remote

    return fetch_remote(path, folder, progress) if is_remote(path) else path


def _count_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _show_progress() -> Progress:
    """A bar on standard error that is wiped when the last byte was read."""

    def show(done_bytes: int, total_bytes: int) -> None:
        ratio = min(1.0, done_bytes / max(1, total_bytes))
        bar = "#" * round(ratio * 30)
        line = f"\rreading [{bar:<30}] {ratio:4.0%} of {total_bytes / 2**20:.0f} MiB"
        sys.stderr.write(line if ratio < 1 else "\r" + " " * len(line) + "\r")
        sys.stderr.flush()

    return show
