"""A Report -> where the user wants it: the terminal, a JSON file, an HTML file."""

from __future__ import annotations

import os
import sys

from hotloop.core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import TextIO

    from hotloop.core.report import Report


def add_output_options(parser: argparse.ArgumentParser, *, json_help: str) -> None:
    parser.add_argument("--json", metavar="FILE", help=json_help)
    parser.add_argument("--html", metavar="FILE", help="write the report as one HTML file")
    parser.add_argument("-q", "--quiet", action="store_true", help="print no report")


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


def show_report(
    report: Report, *, json_path: str | None, html_path: str | None, quiet: bool, stream: TextIO, top: int = 10
) -> None:
    """Write the files that were asked for, then the text; ``-`` as JSON file is standard output."""
    import shutil

    from hotloop.diagnose import RULES
    from hotloop.report import render_html, render_json, render_terminal

    if json_path is not None:
        text = render_json(report) + "\n"
        if json_path == "-":
            sys.stdout.write(text)
        else:
            write_text(json_path, text)
    manuals = {rule_id: rule.manual for rule_id, rule in RULES.items()}
    if html_path is not None:
        write_text(html_path, render_html(report, manuals=manuals))
    if quiet:
        return
    is_terminal = stream.isatty()
    width = shutil.get_terminal_size((100, 24)).columns if is_terminal else 100
    color = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "")
    unicode = encoding.startswith("utf")
    stream.write(render_terminal(report, width=width, color=color, unicode=unicode, manuals=manuals, top=top))
    stream.flush()


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
