"""hotloop lint: static checks of training scripts, Dockerfiles, batch scripts and manifests, with certain fixes."""

from __future__ import annotations

import argparse
import sys

from hotloop import __version__
from hotloop.cli.options import option, output_options
from hotloop.cli.show import check_outputs, find_surface, show_report, write_text
from hotloop.core.errors import UsageError
from hotloop.core.findings import Severity
from hotloop.core.lint import Confidence

ORDER, SUMMARY = 11, "check training scripts, Dockerfiles, batch scripts and manifests without running them"


ABOUT = {
    "description": (
        "Check training scripts, Dockerfiles, Slurm batch scripts and Kubernetes manifests without running "
        "them. Exits with 1 if a finding has the severity of --fail-on or above."
    )
}
OPTIONS = (
    option("paths", nargs="+", metavar="PATH", help="files, or folders to search"),
    option("--fix", action="store_true", help="apply the fixes that are certain, then check again"),
    option("--diff", action="store_true", help="print the changes that --fix would make as a diff, and write nothing"),
    option(
        "--save-seconds",
        type=float,
        metavar="S",
        help="seconds that a save takes: also check that signals and grace periods leave enough time for it",
    ),
    *output_options(kind="lint"),
    option("--sarif", metavar="FILE", help="write the report as SARIF 2.1.0"),
    option(
        "--fail-on",
        choices=[severity.value for severity in Severity],
        help="the lowest severity that makes lint exit with 1 (default: fail_on of the settings, or medium)",
    ),
    option(
        "--confidence",
        choices=[confidence.value for confidence in Confidence],
        default=Confidence.LIKELY.value,
        help="report only findings of at least this certainty (default: likely, which includes certain)",
    ),
    option("--exit-zero", action="store_true", help="exit with 0 whatever the findings are"),
)


def execute(arguments: argparse.Namespace) -> int:
    import os
    from dataclasses import replace
    from functools import partial

    from hotloop.core.settings import load_settings
    from hotloop.judge.lint import LINT_RULES, lint_paths
    from hotloop.judge.lint.fixes import make_repairs, write_repairs
    from hotloop.show.report import render

    check_outputs(arguments.json, arguments.html, arguments.sarif)
    if arguments.fix and arguments.diff:
        raise UsageError("--fix changes files and --diff does not; give only one of them")
    if arguments.save_seconds is not None and not arguments.save_seconds > 0:
        raise UsageError(f"--save-seconds {arguments.save_seconds:g}: give a number of seconds above 0")
    least = Confidence(arguments.confidence)
    cores = min(os.cpu_count() or 1, 8)
    settings = load_settings()
    judge = partial(lint_paths, save_s=arguments.save_seconds, confidence=least, processes=cores, settings=settings)
    report, read = judge(arguments.paths, __version__)
    repairs = make_repairs(report.findings, read) if arguments.fix or arguments.diff else []
    if arguments.fix and repairs:
        write_repairs(repairs)
        report, _ = judge(arguments.paths, __version__)
        report = replace(report, fixed_count=sum(one.count for one in repairs))
    manuals = {rule_id: rule.manual for rule_id, rule in LINT_RULES.items()}
    if arguments.sarif is not None:
        arguments.quiet = arguments.quiet or arguments.sarif == "-"
        write_text(arguments.sarif, render("sarif", report, find_surface(sys.stdout, manuals=manuals)))
    if arguments.diff:
        sys.stdout.write("".join(one.diff() for one in repairs))
        arguments.quiet = True
    show_report(report, arguments, sys.stdout, manuals=manuals)
    if arguments.exit_zero:
        return 0
    named = set(arguments.paths)
    return (
        2
        if any(one.failed and one.file in named for one in report.unread)
        else int(report.fails(Severity(arguments.fail_on or settings.fail_on)))
    )
