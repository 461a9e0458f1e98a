"""hotloop drill: does a training survive that it is preempted?"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from hotloop.cli.options import option, output_options
from hotloop.cli.show import check_outputs, show_report, take_command
from hotloop.core.drill import SIGNALS
from hotloop.core.errors import UsageError

ORDER, SUMMARY = 4, "rehearse preemption: send real signals, restart the command, and report what was lost"
EXIT_CODES = {"pass": 0, "fail": 1, "cannot tell": 3}


ABOUT = {
    "description": (
        "Train once without interruption, in a copy of this folder, then end training with a signal during warm-up, a "
        "step, an evaluation and a save, and start the same command again. Reports whether a checkpoint was saved, "
        "whether training resumed with the same losses, how many steps were lost, and which files were written only "
        "in part. SIGTERM goes to the first process, as from Kubernetes; SIGUSR1 goes to every process, as from "
        "Slurm; SIGKILL goes to all processes. Exits with 0 for pass, 1 for fail, 3 for cannot tell, and 2 after a "
        "usage error."
    ),
    "usage": "hotloop drill [options] -- COMMAND...",
}
OPTIONS = (
    option("--budget", metavar="TIME", default="15m", help="total time, such as 90s, 15m or 2h (default: 15m)"),
    option("--signal", choices=SIGNALS, help="rehearse only this signal (default: all three)"),
    option(
        "--grace",
        metavar="TIME",
        default="30s",
        help="time from the signal until everything is killed, such as 30s or 2m (default: 30s)",
    ),
    option(
        "--checkpoints",
        metavar="DIR",
        help="folder in which the command writes its checkpoints: the drill ignores those that are already there. A "
        "folder outside of this one has to be empty",
    ),
    *output_options("drill", kind="drill", html=None),
    option("command", nargs="...", metavar="COMMAND", help="the training command"),
)


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.agent.attach import child
    from hotloop.change.tune.rehearsal import check_empty
    from hotloop.cli.show import emit
    from hotloop.cli.tune_command import make_folder, parse_time_s
    from hotloop.pipeline.drilling import DrillRequest, drill

    check_outputs(arguments.json)
    command = take_command(arguments, "rehearse", "drill -- python train.py")
    budget_s, grace_s = parse_time_s(arguments.budget), parse_time_s(arguments.grace, "--grace")
    cwd = Path.cwd()
    checkpoints = None if arguments.checkpoints is None else Path(os.path.abspath(arguments.checkpoints))
    if checkpoints == cwd:
        raise UsageError("--checkpoints is this folder itself; give the folder in it to which checkpoints are written")
    if checkpoints is not None and not checkpoints.is_relative_to(cwd):
        check_empty(checkpoints)
    resolved = child.resolve_attachable(command, os.environ.get("PATH"))
    request = DrillRequest(
        command=tuple(resolved),
        cwd=cwd,
        variables=dict(os.environ),
        signals=SIGNALS if arguments.signal is None else (arguments.signal,),
        grace_s=grace_s,
        budget_s=budget_s,
        checkpoints=checkpoints,
    )
    folder = make_folder(None, "drill")
    try:
        report = drill(request, folder, (lambda text: None) if arguments.quiet else emit)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if report.verdict == "pass":
        shutil.rmtree(folder, ignore_errors=True)
    elif not arguments.quiet:
        emit(f"the output of every run is in {os.path.relpath(folder)}/trials")
    show_report(report, arguments, sys.stdout)
    return EXIT_CODES[report.verdict]
