"""A report of any kind -> where the user wants it: the terminal, standard output in a format, a JSON or HTML file."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from hotloop.core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO

    from hotloop.core.report import Report
    from hotloop.pipeline.runs import Probe
    from hotloop.show.report import Surface


def choose_workers(arguments: argparse.Namespace) -> int:
    from hotloop.core.machine import count_cores

    return arguments.workers or count_cores()


def check_counts(arguments: argparse.Namespace, *names: str) -> None:
    """Raises UsageError unless these options are at least 1, or not given."""
    for name in names:
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} {value}: give a number of at least 1")


def take_command(arguments: argparse.Namespace, purpose: str, example: str) -> list[str]:
    """The words of the training command. Raises UsageError without any."""
    command: list[str] = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise UsageError(f"no command to {purpose}; run: hotloop {example}")
    return command


def emit(text: str) -> None:
    """A line on standard error."""
    print(f"hotloop: {text}", file=sys.stderr, flush=True)


def check_outputs(*paths: str | None) -> None:
    """Raises UsageError before any work is done when a file could not be written."""
    from hotloop.core.output_file import is_special

    for path in paths:
        if path is None or path == "-" or (is_special(path) and os.access(path, os.W_OK)):
            continue
        folder = Path(path).resolve().parent
        if not folder.is_dir():
            raise UsageError(f"cannot write {path}: the folder {folder} does not exist; create it first")
        if Path(path).is_dir() or not os.access(folder, os.W_OK):
            raise UsageError(f"cannot write {path}: give a file in a folder to which you can write")


def choose_width(stream: TextIO, piped: int = 100) -> int:
    """Columns of what is printed: COLUMNS, else the terminal's, else ``piped``."""
    import shutil

    env_columns = os.environ.get("COLUMNS", "")
    if stream.isatty() or (env_columns.isdecimal() and int(env_columns) > 0):
        return shutil.get_terminal_size((piped, 24)).columns
    return piped


def find_surface(stream: TextIO, **more: Any) -> Surface:
    """The stream's abilities: its width, colors and signs, plus the manuals of all rules and the run's folder."""
    from hotloop.judge.diagnose import RULES
    from hotloop.show.report import Surface

    color = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "")
    known: dict[str, Any] = {
        "width": choose_width(stream),
        "color": color,
        "unicode": encoding.startswith("utf"),
        "manuals": {rule_id: rule.manual for rule_id, rule in RULES.items()},
        "folder": os.getcwd(),
    }
    return Surface(**known | more)


def show_report(
    report: object, arguments: argparse.Namespace, stream: TextIO, *, files: bool = True, **more: Any
) -> None:
    """Write the files that ``--json`` and ``--html`` ask for (unless not ``files``), then the text in ``--format``.

    With ``-`` as a file standard output gets that, and no text. ``more`` are fields of the Surface that the caller
    knows better than the stream.
    """
    from hotloop.show.report import render

    if getattr(arguments, "top", None) is not None:
        more = {"top": arguments.top, **more}
    surface = find_surface(stream, **more)
    html = getattr(arguments, "html", None)
    if arguments.json == "-" or (files and arguments.json is not None):
        write_text(arguments.json, render("json", report, surface) + "\n")
    report = _drop_vain_command(report, html)
    if files and html is not None:
        write_text(html, render("html", report, surface))
    if not arguments.quiet and "-" not in (arguments.json, html):
        text = render(arguments.format, report, surface)
        stream.write(text if text.endswith("\n") else text + "\n")
        stream.flush()


def _drop_vain_command(report: object, html: str | None) -> object:
    """The report without a next command that draws a page which was asked for, or a run that is not here."""
    from dataclasses import replace

    from hotloop.core.report import Report

    words = (report.next_command or "").split() if isinstance(report, Report) else []
    if not isinstance(report, Report) or words[:2] != ["hotloop", "report"]:
        return report
    is_here = "://" in words[2] or (Path.cwd() / ".hotloop" / words[2]).is_dir()
    return report if is_here and html is None else replace(report, next_command=None)


def make_probe() -> Probe:
    """Measures opportunities, and says so on a terminal."""
    from functools import partial

    from hotloop.pipeline.runs import probe_training

    def begin() -> None:
        if sys.stderr.isatty():
            emit("measuring what other settings would save (about 10 s; Ctrl-C skips it)")

    return partial(probe_training, emit=emit, on_begin=begin)


def note_newer_run(*names: str) -> None:
    """Say on stderr that ``last``, if it is among the names, passes over a newer run without a training."""
    from hotloop.core.errors import RecordingError
    from hotloop.evidence.trace.recording import find_newer, find_run

    if "last" not in names:
        return
    try:
        run = find_run("last", Path.cwd())
    except RecordingError:
        return  # the command says so itself
    newer = find_newer(run)
    if newer is not None:
        emit(
            f"showing {run.name}, the last run in which training was seen; there was none in the newer run {newer.name}"
        )


def write_text(path: str, text: str) -> None:
    """Write a complete file in one move: a reader never sees half of it. ``-`` is standard output."""
    from hotloop.core.output_file import open_whole

    if path == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        with open_whole(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def write_new(path: str, text: str) -> None:
    """Write a complete file, unless it holds this text already. Raises UsageError where it holds anything else."""
    from hotloop.core.output_file import is_special

    target = Path(path)
    if not is_special(path) and target.exists() and not (target.is_file() and target.read_bytes() == text.encode()):
        raise UsageError(f"{path} exists and holds something else: remove it, or give another name")
    write_text(path, text)


def has_serious_fault(report: Report) -> bool:
    """True when a fault of severity high or medium was found."""
    from hotloop.core.findings import Kind, Severity

    return any(f.kind is Kind.FAULT and f.severity in (Severity.HIGH, Severity.MEDIUM) for f in report.findings)
