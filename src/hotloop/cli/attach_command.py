"""hotloop attach: what does a training that already runs do, or where is it stuck?"""

from __future__ import annotations

import sys

from hotloop.cli.options import option, output_options

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

ORDER, SUMMARY = 2, "show where a running training job is, or where it hangs"
ASKED = {
    "deep": "record the operators of one step of a run (CPU), so that the run's report can judge them",
    "off": "make the agent in a run only count steps, until --on",
    "on": "record a run's steps again",
}
EXIT_CODES = {"hung": 1, "slow": 1, "cannot tell": 3}


ABOUT = {
    "description": (
        "Observe a running training job for a few seconds, whether or not hotloop started it, and report whether it "
        "is hung, slow or healthy: which rank differs, at which line it is, what it waits for, and since when. "
        "Nothing is stopped or changed. Exits with 0 if the job is healthy, starting, saving or compiling, 1 if it is "
        "hung or slow, 3 if that is unknown, and 2 after a usage error."
    )
}
OPTIONS = (
    option(
        "target",
        nargs="?",
        metavar="PID|RUN",
        help="process id of a rank or of its launcher, or a run folder or its name (default: every training job on "
        "this machine)",
    ),
    [
        option(
            "--trace",
            type=int,
            metavar="STEPS",
            help="record a trace of the next STEPS steps (1 to 100) on every rank of a run, and print where the trace "
            "is",
        ),
        *(option(f"--{name}", action="store_true", help=text) for name, text in ASKED.items()),
    ],
    *output_options("snapshot", kind="attach", html=None),
)


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.cli.show import check_outputs, show_report
    from hotloop.pipeline.attach import attach

    if arguments.trace is not None or any(getattr(arguments, option) for option in ASKED):
        return _ask(arguments)
    check_outputs(arguments.json)
    reports = attach(arguments.target)
    for report in reports[1:] if arguments.json is None else ():
        show_report(report, arguments, sys.stdout)
    show_report(reports[0], arguments, sys.stdout)
    return EXIT_CODES.get(reports[0].verdict, 0)


def _ask(arguments: argparse.Namespace) -> int:
    """Something of a training that hotloop runs."""
    from hotloop.core.errors import UsageError
    from hotloop.core.events import WANTS_DEEP, WANTS_OFF, WANTS_ON, WANTS_TRACE
    from hotloop.pipeline.attach import ask_of_training

    if arguments.trace is not None and not 1 <= arguments.trace <= 100:
        raise UsageError(f"--trace {arguments.trace}: give 1 to 100 steps")
    bits = {"deep": WANTS_DEEP, "off": WANTS_OFF, "on": WANTS_ON}
    wants = next((bit for option, bit in bits.items() if getattr(arguments, option)), WANTS_TRACE)
    for path in ask_of_training(arguments.target, wants, arguments.trace or 0):
        print(path)
    return 0
