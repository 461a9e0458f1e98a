"""hotloop bisect: which of the changes between a fast and a slow run makes it slow?"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys

from hotloop.cli.options import option, output_options
from hotloop.cli.show import check_outputs, emit, show_report
from hotloop.core.errors import UsageError

ORDER, SUMMARY = 4, "find the package, variable or commit that makes a run slow"


ABOUT = {
    "description": (
        "Name what differs between the environments of a fast and a slow recorded run, and find the change that makes "
        "the run slow: hotloop runs COMMAND with some of the changes and without them, as prove does, and halves the "
        "changes until one is left. With --git, the changes are the commits of a branch. Losses are not compared. "
        "Your environment and your working folder are not changed. Exits with 0 if the culprit was found, 3 for cannot "
        "tell, and 2 after a usage error."
    ),
    "usage": (
        "hotloop bisect [options] FAST SLOW -- COMMAND...\n"
        "       hotloop bisect [options] --git GOOD..BAD -- COMMAND..."
    ),
}
OPTIONS = (
    option("--git", metavar="GOOD..BAD", help="bisect the first-parent commits after GOOD up to BAD"),
    option(
        "--install",
        metavar="COMMAND",
        help="how to install packages into an environment of hotloop's own, with {python} for its Python and "
        "{requirements} for words such as numpy==2.0.1: 'uv pip install --no-deps --python {python} {requirements}' "
        "(default: packages are named but not bisected)",
    ),
    option("--budget", metavar="TIME", default="30m", help="total time, such as 90s, 15m or 2h (default: 30m)"),
    option(
        "--at-least",
        metavar="PERCENT",
        default="3%",
        help="the smallest slowdown that is worth a search (default: 3%%)",
    ),
    *output_options("bisection", kind="bisect", html=None),
    option("words", nargs="...", metavar="FAST SLOW -- COMMAND", help="two recorded runs, and the training command"),
)


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.cli.prove_command import make_variant, parse_percent, take_pair
    from hotloop.cli.tune_command import make_folder, parse_time_s
    from hotloop.pipeline.bisecting import bisect, suspect_environment, suspect_revisions

    runs, command = split_words(arguments)
    check_outputs(arguments.json)
    check_install(arguments.install)
    budget_s, least_ratio = parse_time_s(arguments.budget), parse_percent(arguments.at_least)
    variant, say = make_variant(command, dict(os.environ)), (lambda text: None) if arguments.quiet else emit
    folder = make_folder(None, "bisect")
    try:
        if arguments.git is None:
            suspects = suspect_environment(runs[0], runs[1], variant, folder, arguments.install)
        else:
            suspects = suspect_revisions(*take_pair(arguments.git, "..", "git"), variant)
        report = bisect(suspects, command, folder, say, budget_s=budget_s, least_ratio=least_ratio)
    finally:
        shutil.rmtree(folder / "environment", ignore_errors=True)
        if not list(folder.glob("*/*/trials/*")):  # no log of a failure is left
            shutil.rmtree(folder, ignore_errors=True)
    show_report(report, arguments, sys.stdout)
    return 0 if report.verdict == "found" else 3


def split_words(arguments: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The recorded runs and the command. Options may also follow the runs. Raises UsageError."""
    words: list[str] = arguments.words
    if "--" not in words or not words[words.index("--") + 1 :]:
        raise UsageError("no command to bisect with; run: hotloop bisect FAST SLOW -- python train.py")
    middle = words.index("--")
    runs, options, command = words[: min(2, middle)], words[2:middle], words[middle + 1 :]
    if options:
        arguments.parser.parse_args(options, arguments)
    wanted = 2 if arguments.git is None else 0
    if len(runs) != wanted or (options and arguments.words):
        raise UsageError(
            "give two recorded runs, or --git GOOD..BAD, before the --; run: hotloop bisect FAST SLOW -- python "
            "train.py"
        )
    return runs, shlex.split(command[0]) if len(command) == 1 else command


def check_install(install: str | None) -> None:
    """Raises UsageError if the command could install into the user's own environment."""
    if install is not None and not {"{python}", "{requirements}"} <= set(install.split()):
        raise UsageError(
            f"--install {install!r} does not contain the words {{python}} and {{requirements}}, so that it could "
            "change your own environment; give: uv pip install --no-deps --python {python} {requirements}"
        )
