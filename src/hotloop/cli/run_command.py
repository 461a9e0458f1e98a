"""hotloop run: put it in front of a training command; the command runs unchanged and a report follows."""

from __future__ import annotations

import os
import sys

from hotloop.core.errors import CommandNotStarted, HotloopError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from pathlib import Path
    from typing import Any

    from hotloop.core.strategy import Strategy


def add_parser(subparsers: Any, summary: str) -> None:
    parser = subparsers.add_parser(
        "run",
        help=summary,
        description="Run a training command unchanged, watch it from inside, and report what its steps wait for.",
        usage="hotloop run [options] -- COMMAND...   or   hotloop run [options] train.py [arguments]",
    )
    from hotloop.cli.show import add_output_options

    add_output_options(parser, json_help="write the report as JSON to FILE")
    parser.add_argument(
        "--name", metavar="NAME", help="name of the run folder under .hotloop/ (default: time and command)"
    )
    parser.add_argument(
        "--strategy", metavar="FILE", help="apply the techniques of this TOML file to the training, without changing it"
    )
    parser.add_argument("--live", action="store_true", help="print a line with rate, shares and verdict while training")
    parser.add_argument("--no-deep", action="store_true", help="do not record the operators of one step")
    probing = parser.add_mutually_exclusive_group()
    probing.add_argument("--no-probe", action="store_true", help="measure no opportunities after the training")
    probing.add_argument("--probe", action="store_true", help="measure them also after Ctrl-C or SIGTERM")
    parser.add_argument(
        "--trace", metavar="PLAN", help="a Chrome trace per rank: wait:warmup:active[:repeat], such as 5:2:3"
    )
    parser.add_argument(
        "--trace-ranks", metavar="RANKS", default="all", help="ranks that --trace records: 0,1 or 0-3 or all (default)"
    )
    parser.add_argument(
        "--watch-numbers",
        action="store_true",
        help="look at the loss and at norms of the gradients, and say where they are not finite",
    )
    parser.add_argument("--nvtx", action="store_true", help="mark steps and phases as NVTX ranges where CUDA exists")
    parser.add_argument("command", nargs="...", metavar="COMMAND", help="the training command")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.attach import child
    from hotloop.attach.run_folder import create_run_folder, write_manifest
    from hotloop.attach.sampling import StackSampling
    from hotloop.attach.unattached import UnattachedWatch
    from hotloop.cli.show import check_outputs
    from hotloop.core.trace_plan import parse_trace_plan, parse_trace_ranks
    from hotloop.pipeline.telemetry import DeviceWatch
    from hotloop.tune.supervisor import CORES_FILE, Cores

    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise UsageError("no command to run; write: hotloop run -- python train.py")
    if arguments.json == "-":
        raise UsageError("run writes its JSON to a file (standard output belongs to the training): --json report.json")
    check_outputs(arguments.json, arguments.html)
    resolved = child.resolve_command(command, os.environ.get("PATH"))
    if arguments.trace is not None:
        parse_trace_ranks(arguments.trace_ranks)
        print(f"hotloop: the profiler {parse_trace_plan(arguments.trace).describe()}", file=sys.stderr)
    strategy = _load_strategy(arguments.strategy) if arguments.strategy is not None else None
    folder, notes = create_run_folder(arguments.name, command)
    if child.ignores_pythonpath(resolved):
        notes.append(
            "Python was started with -I, -E or -S, which ignores PYTHONPATH: only an interpreter whose own "
            "environment has hotloop installed can be observed so"
        )
    write_manifest(folder, command, notes)
    options: dict[str, Any] = {
        "deep": not arguments.no_deep,
        "outside": True,
        "trace": arguments.trace,
        "trace_ranks": arguments.trace_ranks,
        "nvtx": arguments.nvtx,
        "numbers": arguments.watch_numbers,
    }
    variables: dict[str, str] = dict(os.environ)
    if strategy is not None:
        from hotloop.apply.environment import set_variables
        from hotloop.core.strategy import strategy_to_mapping

        variables, options["variables"] = set_variables(strategy, variables)
        options["strategy"] = strategy_to_mapping(strategy)
    environment = child.attach_environment(variables, folder, options)
    kills_before = child.oom_kills()
    live = _live_line(folder) if arguments.live else None
    watch = DeviceWatch(folder, environment)
    cores = Cores()
    cores.sample()
    unattached = UnattachedWatch(folder / "processes")
    stacks = StackSampling(folder / "processes")

    def on_tick() -> None:
        watch.tick()
        cores.sample()
        unattached.tick()
        stacks.tick()
        if live is not None:
            live()

    try:
        end = child.run_child(resolved, environment, on_tick)
    except BaseException as error:
        watch.stop()
        stacks.stop()
        if isinstance(error, CommandNotStarted):
            _remove_run_folder(folder)
        raise
    try:  # one more Ctrl-C, wherever it comes, ends the report and not the exit code
        watch.stop()
        stacks.stop()
        kills_after = child.oom_kills()
        cores.sample(now=True)
        _write_json(folder / CORES_FILE, cores.tell())
        if watch.failure is not None:
            print(f"hotloop: the devices were not watched to the end: {watch.failure}", file=sys.stderr)
        _write_json(
            folder / "outcome.json",
            {
                "schema": "hotloop.outcome/1",
                "exit_code": end.exit_code,
                "signal": end.signal_number,
                "duration_s": end.duration_s,
                "oom_kills": None if kills_before is None or kills_after is None else kills_after - kills_before,
                "unattached": unattached.reason,
            },
        )
        _report(arguments, folder, interrupted=end.interrupted)
    except HotloopError as error:
        print(f"hotloop: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"hotloop: interrupted; the report is still there: hotloop report {folder.name}", file=sys.stderr)
    except Exception as error:
        # The training's own exit code must reach the shell, whatever is wrong with our report.
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = (
            f" ({os.path.basename(place.tb_frame.f_code.co_filename)}:{place.tb_lineno})" if place is not None else ""
        )
        print(
            f"hotloop: a bug in hotloop lost the report: {type(error).__name__}: {error}{where}; "
            f"the recording is in {folder}",
            file=sys.stderr,
        )
    return end.shell_code


def _load_strategy(path: str) -> Strategy:
    """The strategy, checked before anything starts."""
    from hotloop.apply import TECHNIQUES, check_strategy
    from hotloop.core.strategy import load_strategy

    return check_strategy(load_strategy(path), TECHNIQUES, source=path)


def _report(arguments: argparse.Namespace, folder: Path, *, interrupted: bool) -> None:
    from hotloop.cli.probing import probe_training
    from hotloop.cli.show import show_report
    from hotloop.pipeline import no_probe, report_run
    from hotloop.trace.recording import read_run

    skips_probe = arguments.no_probe or (interrupted and not arguments.probe)
    if skips_probe and not arguments.no_probe:
        print("hotloop: interrupted: opportunities are not measured (--probe measures them)", file=sys.stderr)
    probe = no_probe if skips_probe else probe_training(folder)
    report = report_run(read_run(folder), folder=folder, probe=probe)
    show_report(report, json_path=arguments.json, html_path=arguments.html, quiet=arguments.quiet, stream=sys.stderr)


def _remove_run_folder(folder: Path) -> None:
    (folder / "run.json").unlink(missing_ok=True)
    (folder / "processes").rmdir()
    folder.rmdir()


def _write_json(path: Path, value: dict[str, Any]) -> None:
    """Best effort: a full disk or a folder that was deleted must not hide the training's own exit code."""
    import json

    try:
        partial = path.with_suffix(".part")
        partial.write_text(json.dumps(value))
        partial.replace(path)
    except OSError as error:
        print(f"hotloop: cannot write {path}: {error.strerror}", file=sys.stderr)


def _live_line(folder: Path) -> Any:
    from hotloop.cli.live import LiveLine

    return LiveLine(folder, sys.stderr)
