"""hotloop doctor: is this machine set up well for training, and which points of the usual checklist are met?"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from hotloop.bench.checklist import Item
    from hotloop.bench.doctor import Check
    from hotloop.core.report import Report

STYLES = {"harmful": "1;31", "warning": "1;33", "good": "32", "unknown": "2", "ticked": "32", "unticked": "1;33"}
STYLES["not-applicable"] = STYLES["unknown"]
BOXES = {"ticked": "[x]", "unticked": "[ ]", "unknown": "[?]", "not-applicable": "[-]"}
MOST_WIDTH = 110
LEAST_WIDTH = 40


ORDER, SUMMARY = 9, "check whether this machine is set up well for training"


def add_parser(subparsers: Any) -> None:
    from hotloop.cli.show import add_output_options

    parser = subparsers.add_parser(
        "doctor",
        help=SUMMARY,
        description="Check this machine, the training's python and the environment for what slows or breaks "
        "a training. Exits with 1 when something is harmful.",
    )
    parser.add_argument(
        "--checklist",
        metavar="RUN",
        nargs="?",
        const="",
        help="also print the tuning checklist, filled in from a recorded run (folder, name or 'last') if one is given",
    )
    parser.add_argument("--data", metavar="FOLDER", help="read from this folder for a second to see how fast that is")
    parser.add_argument("--python", metavar="PATH", help="the training's python (default: python on PATH)")
    add_output_options(parser, "checks", html=None, quiet="nothing")
    parser.add_argument("--exit-zero", action="store_true", help="exit with 0 even when something is harmful")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    import json
    from pathlib import Path

    from hotloop.bench.checklist import fill_checklist
    from hotloop.bench.doctor import has_harm, run_checks
    from hotloop.bench.host import examine_host
    from hotloop.bench.storage import read_folder
    from hotloop.cli.show import check_outputs, write_json
    from hotloop.core.errors import UsageError

    check_outputs(arguments.json)
    report, recorded_python = _read_run(arguments.checklist) if arguments.checklist else (None, None)
    interpreter = _find_python(arguments.python, recorded_python)
    reading = None
    if arguments.data is not None:
        folder = Path(arguments.data)
        if not folder.is_dir():
            raise UsageError(f"--data {arguments.data}: there is no such folder; name the one that holds the data")
        reading = read_folder(str(folder.resolve()))
    checks = run_checks(examine_host(interpreter, os.environ, reading=reading))
    items = None if arguments.checklist is None else fill_checklist(checks, report)
    command = _next_command(checks, arguments)
    if arguments.json is not None:
        write_json(arguments.json, json.dumps(_to_json(checks, items, report, interpreter, command), indent=1))
    if not arguments.quiet and arguments.json != "-":
        _print(checks, items, command)
    return 1 if has_harm(checks) and not arguments.exit_zero else 0


def _read_run(run: str) -> tuple[Report, str | None]:
    """The report of a recorded run and the interpreter that it trained with."""
    from pathlib import Path

    from hotloop.pipeline.runs import recorded_probe, report_run
    from hotloop.trace.recording import find_run, read_run

    folder = find_run(run, Path.cwd())
    recording = read_run(folder)
    executable = recording.processes[0].process.get("executable") if recording.processes else None
    return report_run(recording, folder=folder, probe=recorded_probe), executable if isinstance(
        executable, str
    ) else None


def _find_python(asked: str | None, recorded: str | None) -> str | None:
    """The training's python: the one that was asked for, the recorded one, or the one on PATH; None without any.

    Raises UsageError when the one that was asked for cannot be run.
    """
    import shutil

    from hotloop.core.errors import UsageError

    if asked is not None:
        found = shutil.which(asked)
        if found is None:
            raise UsageError(f"--python {asked}: not found, or not executable; give the path of the training's python")
        return found
    if recorded is not None and os.access(recorded, os.X_OK):
        return recorded
    return shutil.which("python") or shutil.which("python3")


def _next_command(checks: Sequence[Check], arguments: argparse.Namespace) -> str:
    """The next command worth typing."""
    if any(c.id == "torch" and c.status == "unknown" for c in checks):
        return "hotloop doctor --python PATH   (the python that trains)"
    if arguments.checklist:
        return f"hotloop report {arguments.checklist}"
    return "hotloop run -- python train.py"


def _to_json(
    checks: Sequence[Check],
    items: Sequence[Item] | None,
    report: Report | None,
    interpreter: str | None,
    command: str,
) -> Mapping[str, Any]:
    from hotloop import __version__
    from hotloop.bench.checklist import items_to_json
    from hotloop.bench.doctor import ORDER, SCHEMA, checks_to_json

    return {
        "schema": SCHEMA,
        "tool": {"version": __version__},
        "python": interpreter,
        "counts": {status: sum(1 for c in checks if c.status == status) for status in ORDER},
        "checks": checks_to_json(checks),
        "checklist": None if items is None else items_to_json(items),
        "run": None if report is None else report.run_folder,
        "next": command,
    }


def _print(checks: Sequence[Check], items: Sequence[Item] | None, command: str) -> None:
    from hotloop.cli.show import look_at

    width, color, _ = look_at(sys.stdout)
    text = draw_doctor(checks, items, command, width=max(LEAST_WIDTH, min(width, MOST_WIDTH)), color=color)
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def draw_doctor(checks: Sequence[Check], items: Sequence[Item] | None, command: str, *, width: int, color: bool) -> str:
    """Checks and checklist as lines: what is bad first and in full, what is good in a line per group."""

    def paint(text: str, style: str) -> str:
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if color else text

    counts = {status: sum(1 for c in checks if c.status == status) for status in STYLES}
    worst = next((s for s in ("harmful", "warning") if counts[s]), "good")
    names = {"warning": "warning" if counts["warning"] == 1 else "warnings"}
    told = [f"{counts[s]} {names.get(s, s)}" for s in ("harmful", "warning", "good", "unknown") if counts[s]]
    blind = any(c.id == "torch" and c.status == "unknown" for c in checks)
    fine = "torch was not seen, the rest of the machine is set up well" if blind else "this machine is set up well"
    head = "this machine harms a training" if worst == "harmful" else fine
    if worst == "warning":
        head = f"{told.pop(0)} to check before training"
    lines = [paint(head, "warning" if blind and worst == "good" else worst) + (f": {', '.join(told)}" if told else "")]
    for check in checks:
        if check.status in ("harmful", "warning"):
            lines += ["", *_problem_lines(check, width, paint)]
    lines += ["", *_good_lines(checks, width)]
    if items is not None:
        lines += _checklist_lines(items, width, paint)
    lines += ["", f"next: {command}"]
    return "\n".join(lines) + "\n"


def _problem_lines(check: Check, width: int, paint: Callable[[str, str], str]) -> Iterator[str]:
    from hotloop.report.text import clean

    is_variable = check.id.startswith("variable-")
    subject = clean(check.measured if is_variable else f"{check.title}: {check.measured}")
    first, *rest = _wrap(subject, width - 9)
    yield paint(check.status.ljust(9), check.status) + first
    yield from (" " * 9 + line for line in rest)
    for label, text in (("why", check.why), ("fix", check.fix)):
        if text:
            first, *rest = _wrap(clean(text), width - 14)
            yield " " * 9 + label.ljust(5) + first
            yield from (" " * 14 + line for line in rest)


def _good_lines(checks: Sequence[Check], width: int) -> Iterator[str]:
    """One paragraph per group with what is good, and one with what could not be found out."""
    from hotloop.bench.doctor import GROUPS
    from hotloop.report.text import clean

    for group in GROUPS:
        good = [c for c in checks if c.group == group and c.status == "good"]
        texts = [clean(c.measured if c.title == group else f"{c.title}: {c.measured}") for c in good]
        if texts:
            yield from _paragraph(group, "; ".join(texts), width)
    unknown = [c for c in checks if c.status == "unknown"]
    reasons: dict[str, list[str]] = {}
    for check in unknown:
        reasons.setdefault(clean(check.why + (f": {check.fix}" if check.fix else "")), []).append(check.title)
    for reason, titles in reasons.items():
        yield from _paragraph("unknown", f"{', '.join(titles)} ({reason})", width)


def _checklist_lines(items: Sequence[Item], width: int, paint: Callable[[str, str], str]) -> Iterator[str]:
    """The checklist by stage, with its evidence."""
    from hotloop.bench.checklist import NO_RUN, STAGES
    from hotloop.report.text import clean

    ticked = sum(1 for item in items if item.tick == "ticked")
    open_count = sum(1 for item in items if item.tick == "unticked")
    not_applicable = sum(1 for item in items if item.tick == "not-applicable")
    unknown = len(items) - ticked - open_count - not_applicable
    yield ""
    yield f"checklist: {ticked} ticked, {open_count} open, {unknown} unknown, {not_applicable} not applicable"
    if any(item.evidence == NO_RUN for item in items):
        yield from _wrap("No run was given: hotloop doctor --checklist RUN answers the rest.", width)
    for stage in STAGES:
        yield ""
        yield f"{stage} training" + (" (this machine, now)" if stage == "before" else "")
        for item in (one for one in items if one.stage == stage):
            first, *rest = _wrap(clean(item.title), width - 4)
            yield f"{paint(BOXES[item.tick], item.tick)} {first}"
            yield from (" " * 4 + line for line in rest)
            if item.evidence != NO_RUN:
                yield from (" " * 6 + line for line in _wrap(clean(item.evidence), width - 6))


def _paragraph(label: str, text: str, width: int) -> Iterator[str]:
    first, *rest = _wrap(text, width - 13)
    yield label.ljust(13) + first
    yield from (" " * 13 + line for line in rest)


def _wrap(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, max(20, width), break_on_hyphens=False) or [""]
