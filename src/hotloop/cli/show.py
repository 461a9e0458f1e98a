"""A report of any kind -> where the user wants it: the terminal, standard output in a format, a JSON or HTML file."""

from __future__ import annotations

import os
import sys

from hotloop.core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any, TextIO

    from hotloop.core.report import Report
    from hotloop.report import Surface


def add_output_options(parser: argparse.ArgumentParser, *, json_help: str) -> None:
    parser.add_argument("--json", metavar="FILE", help=json_help)
    parser.add_argument("--html", metavar="FILE", help="write the report as one HTML file")
    parser.add_argument("-q", "--quiet", action="store_true", help="print no report")


def add_format_option(parser: argparse.ArgumentParser) -> None:
    """``--format``: every renderer that the catalogue finds."""
    from hotloop.report import RENDERERS

    known = "; ".join(f"{one.id}: {one.summary}" for one in RENDERERS.values())
    parser.add_argument(
        "--format",
        metavar="NAME",
        choices=list(RENDERERS),
        default="terminal",
        help=f"print the report in this format (default: terminal). {known}",
    )


def check_outputs(*paths: str | None) -> None:
    """Raises UsageError before any work is done when a file could not be written."""
    from pathlib import Path

    for path in paths:
        if path is None or path == "-":
            continue
        folder = Path(path).resolve().parent
        if not folder.is_dir():
            raise UsageError(f"cannot write {path}: the folder {folder} does not exist; create it first")
        if Path(path).is_dir() or not os.access(folder, os.W_OK):
            raise UsageError(f"cannot write {path}: give the name of a file in a folder that you may write to")


def choose_width(stream: TextIO, piped: int = 100) -> int:
    """Columns of what is printed: COLUMNS, else the terminal's, else ``piped``."""
    import shutil

    said = os.environ.get("COLUMNS", "")
    if stream.isatty() or (said.isdecimal() and int(said) > 0):
        return shutil.get_terminal_size((piped, 24)).columns
    return piped


def find_surface(stream: TextIO, **more: Any) -> Surface:
    """What the stream can show: its width, colours and signs, beside the manuals of all rules and the own folder."""
    from hotloop.diagnose import RULES
    from hotloop.report import Surface

    encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "")
    known: dict[str, Any] = {
        "width": choose_width(stream),
        "color": stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb",
        "unicode": encoding.startswith("utf"),
        "manuals": {rule_id: rule.manual for rule_id, rule in RULES.items()},
        "folder": os.getcwd(),
    }
    return Surface(**known | more)


def show_report(
    report: object,
    *,
    json_path: str | None,
    html_path: str | None = None,
    quiet: bool,
    stream: TextIO,
    format_id: str = "terminal",
    **more: Any,
) -> None:
    """Write the files that were asked for, then the text; ``-`` as JSON file is standard output.

    ``more`` are fields of the Surface that the caller knows better than the stream, such as ``top``.
    """
    from hotloop.report import render

    surface = find_surface(stream, **more)
    if json_path is not None:
        text = render("json", report, surface) + "\n"
        if json_path == "-":
            sys.stdout.write(text)
        else:
            write_text(json_path, text)
    if html_path is not None:
        write_text(html_path, render("html", report, surface))
    if not quiet:
        text = render(format_id, report, surface)
        stream.write(text if text.endswith("\n") else text + "\n")
        stream.flush()


def note_newer_run(*names: str) -> None:
    """Say on stderr that ``last``, if it is among the names, passes over a newer run without a training."""
    from pathlib import Path

    from hotloop.core.errors import RecordingError
    from hotloop.trace.recording import find_newer, find_run

    if "last" not in names:
        return
    try:
        run = find_run("last", Path.cwd())
    except RecordingError:
        return  # the command says so itself
    newer = find_newer(run)
    if newer is not None:
        print(
            f"hotloop: the last training is {run.name}; no training was seen in the newer run {newer.name}",
            file=sys.stderr,
        )


def write_text(path: str, text: str) -> None:
    """Write a whole file at once: a reader never sees half of it."""
    from pathlib import Path

    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def has_serious_fault(report: Report) -> bool:
    """True when a fault of severity high or medium was found."""
    from hotloop.core.findings import Kind, Severity

    return any(f.kind is Kind.FAULT and f.severity in (Severity.HIGH, Severity.MEDIUM) for f in report.findings)
