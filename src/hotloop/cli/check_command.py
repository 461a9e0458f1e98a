"""hotloop check: did a training become slower or larger than its baseline, or than its limits allow? For CI."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hotloop.cli.options import option, output_options
from hotloop.cli.show import (
    check_outputs,
    emit,
    find_surface,
    note_newer_run,
    show_report,
    write_text,
)
from hotloop.core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hotloop.core.check import Check, Launch


ORDER, SUMMARY = 6, "check a run against a baseline or limits"


SIDE = "a run folder, its name under .hotloop/, or 'last'"
ABOUT = {
    "description": (
        "Compare a recorded run with a baseline and with limits: pass, regression or inconclusive. Exits "
        "with 1 on a regression. Give several launches of the baseline so that the noise between launches is known."
    )
}
OPTIONS = (
    option("runs", metavar="RUN", nargs="+", help=f"{SIDE}; repeat it for several launches of the same command"),
    option(
        "--baseline",
        metavar="BASE",
        action="append",
        default=[],
        help="baseline: a run as for RUN, or a file written by --update-baseline; may be repeated",
    ),
    option("--limits", metavar="FILE", help="tolerances and budgets (TOML; docs/check.md lists the keys)"),
    option(
        "--target",
        metavar="NAME=RATIO",
        action="append",
        default=[],
        help="lowest utilization, such as utilization=0.8 or mfu=0.4; the run's own --target is checked too",
    ),
    option("--strict", action="store_true", help="also exit with 1 if the check is inconclusive"),
    [
        option(
            "--update-baseline",
            action="store_true",
            help="after the check, make RUN the baseline: write it to the file BASE with a dated record of the change",
        ),
        option(
            "--add-to-baseline",
            action="store_true",
            help="after the check, add RUN to the launches in the file BASE, unless it is a regression or ran "
            "on another "
            "machine",
        ),
    ],
    *output_options("check", kind="check", html=None, quiet="no table"),
    option("--junit", metavar="FILE", help="write the result as JUnit XML"),
    option("--github", action="store_true", help="print GitHub Actions annotations"),
)


def execute(arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from hotloop.core.check import CheckVerdict
    from hotloop.core.settings import load_settings
    from hotloop.core.utilization import TARGETS, parse_targets
    from hotloop.evidence.analyze.check import CheckLimits, load_limits
    from hotloop.pipeline.comparisons import check_runs
    from hotloop.show.report import render

    check_outputs(arguments.json, arguments.junit)
    if arguments.json == "-" and arguments.github:
        raise UsageError("--json - and --github both write to standard output; give --json a file")
    if arguments.junit == "-":
        raise UsageError("--junit cannot write to standard output; give a file name")
    target = _find_target(arguments)
    creates = target is not None and not target.exists()
    note_newer_run(*arguments.runs, *arguments.baseline)
    limits = load_limits(Path(arguments.limits)) if arguments.limits is not None else CheckLimits()
    targets = {
        TARGETS[name]: ratio for name, ratio in parse_targets(load_settings().add_targets(arguments.target)).items()
    }
    limits = replace(limits, budgets={**limits.budgets, **targets})
    check, launches = check_runs(arguments.runs, [] if creates else arguments.baseline, limits)
    if not arguments.baseline and arguments.limits is None and not check.judged:
        raise UsageError(
            "no baseline or limits to check against; give --baseline BASE, --limits FILE, --target NAME=RATIO or "
            "several"
        )
    surface = find_surface(sys.stdout, is_strict=arguments.strict)
    for name in ("json", "junit"):
        path = getattr(arguments, name)
        if path is not None and path != "-":
            write_text(path, render(name, check, surface) + ("\n" if name == "json" else ""))
    # The baseline is made before anything is printed: what cannot be written is one clear error and no verdict.
    note = None
    if target is not None:
        note = _write_target(target, check, launches, keep=arguments.add_to_baseline)
    is_json = arguments.json == "-"
    if is_json or not creates:
        show_report(check, arguments, sys.stdout, files=False)
    if arguments.github:
        sys.stdout.write(render("github", check, surface))
    sys.stdout.flush()
    if note is not None:
        emit(note)
    if creates and arguments.limits is None and not check.judged:
        return 0
    if check.verdict is CheckVerdict.REGRESSION:
        return 0 if arguments.update_baseline and not _over_budget(check) else 1
    return 1 if arguments.strict and check.verdict is CheckVerdict.INCONCLUSIVE else 0


def _over_budget(check: Check) -> bool:
    from hotloop.core.check import CheckVerdict

    return any(one.kind == "budget" and one.verdict is CheckVerdict.REGRESSION for one in check.judged)


def _find_target(arguments: argparse.Namespace) -> Path | None:
    """The baseline file to write; None when there is none."""

    option = "--update-baseline" if arguments.update_baseline else "--add-to-baseline"
    if not arguments.update_baseline and not arguments.add_to_baseline:
        return None
    if len(arguments.baseline) != 1:
        raise UsageError(f"{option} writes exactly one file; give one --baseline FILE")
    path = Path(arguments.baseline[0])
    if path.is_dir() or (not path.exists() and path.suffix != ".json"):
        raise UsageError(
            f"{option}: {path} is not a baseline file; give a name that ends in .json, such as baseline.json"
        )
    if not path.resolve().parent.is_dir():
        raise UsageError(f"cannot write {path}: the folder {path.resolve().parent} does not exist; create it first")
    return path


def _write_target(target: Path, check: Check, launches: Sequence[Launch], *, keep: bool) -> str:
    from hotloop.core.check import CheckVerdict, format_change
    from hotloop.evidence.analyze.launch import find_stranger, write_baseline

    if keep and check.verdict is CheckVerdict.REGRESSION:
        return f"{target} was not changed: RUN is a regression; to accept the regression, use --update-baseline"
    stranger = find_stranger(target, launches) if keep else None
    if stranger is not None:
        return (
            f"{target} was not changed: {stranger} ran on another machine; use one baseline file per machine, or "
            "start over with --update-baseline"
        )
    text, record = write_baseline(target, launches, check.command, keep=keep)
    write_text(str(target), text)
    step = next((one for one in record["changes"] if one["measure"] == "step_ns"), None)
    moved = "" if step is None else f", mean step {format_change(step['change_ratio'])}"
    return f"{target} {record['what']}: {', '.join(record['launches'])}{moved}"
