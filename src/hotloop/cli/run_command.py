"""hotloop run: put it in front of a training command; the command runs unchanged and a report follows."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from functools import partial
from pathlib import Path

from hotloop.cli.options import option, output_options
from hotloop.cli.show import (
    check_counts,
    check_outputs,
    emit,
    make_probe,
    show_report,
    take_command,
)
from hotloop.core.errors import CommandNotStarted, HotloopError, UsageError
from hotloop.core.machine import count_cores

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hotloop.agent.attach.child import ChildEnd
    from hotloop.agent.replay.collector import Collector
    from hotloop.core.report import Report
    from hotloop.core.strategy import Strategy
    from hotloop.pipeline.bounding import BoundedRun
    from hotloop.pipeline.exports import RunExports
    from hotloop.pipeline.recordings import RunUpload
    from hotloop.pipeline.stalls import StallWatch


ORDER, SUMMARY = 1, "run a training command and report what its steps wait for"


ABOUT = {
    "description": "Run a training command unchanged, watch it from inside, and report what its steps wait for.",
    "usage": "hotloop run [options] -- COMMAND...   or   hotloop run [options] train.py [arguments]",
}
OPTIONS = (
    *output_options(to_stdout=False),
    option("--name", metavar="NAME", help="name of the run folder under .hotloop/ (default: time and command)"),
    option("--strategy", metavar="FILE", help="apply the techniques in this TOML file, without changing the source"),
    option("--live", action="store_true", help="show progress, phases, utilization and loss while training"),
    option(
        "--export",
        metavar="TARGET=WHERE",
        action="append",
        default=[],
        help="export the live numbers of the run (may be repeated): prometheus=:9100, prometheus=FILE.prom, "
        "otlp[=URL], tensorboard=FOLDER, json=FILE",
    ),
    option(
        "--stall",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="report a stall, with the position of each rank, after this many seconds (or ten times the longest step) "
        "without progress (default: 60; 0: never)",
    ),
    option("--stall-exit", action="store_true", help="end a stalled run with SIGTERM"),
    option(
        "--steps-total",
        type=int,
        metavar="N",
        help="total number of steps in the run: shows progress and the remaining time",
    ),
    option(
        "--record",
        metavar="URL",
        help="also send the recording to a URL during training (s3://bucket/run, or a folder); use the same URL on "
        "every node. hotloop report URL then shows all ranks",
    ),
    option(
        "--record-id", metavar="ID", help="id of the run, the same on all its nodes (default: the id of the Slurm job)"
    ),
    option(
        "--record-wait",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long to wait at the end for data that has not been sent yet (default: 30)",
    ),
    [
        option(
            "--deep",
            action="store_true",
            help="record the operators of one step, for rules that need them (see docs/how-it-works.md)",
        ),
        option("--no-deep", action="store_true", help="the default: record no operators"),
    ],
    [
        option("--no-probe", action="store_true", help="do not measure opportunities after the run"),
        option("--probe", action="store_true", help="measure opportunities even after Ctrl-C or SIGTERM"),
    ],
    option(
        "--bounds",
        type=float,
        metavar="MINUTES",
        help="after the run, measure for up to this long what a perfect fix of each finding could save at most, in "
        "trials of the command that leave the cost out (see docs/how-it-works.md)",
    ),
    option(
        "--trace",
        metavar="PLAN",
        help="record a Chrome trace per rank; PLAN is wait:warmup:active[:repeat], such as 5:2:3",
    ),
    option("--trace-ranks", metavar="RANKS", help="ranks that --trace records: 0,1 or 0-3 or all (default: all)"),
    option(
        "--watch-numbers",
        action="store_true",
        help="record the loss and gradient norms, and report steps in which they are not finite",
    ),
    option(
        "--target",
        metavar="NAME=RATIO",
        action="append",
        default=[],
        help="the lowest utilization that you accept, such as utilization=0.8, mfu=0.4 or cpu_utilization=0.9; a "
        "lower value is a finding. On an accelerator, mfu counts the FLOPs of one step",
    ),
    option("--nvtx", action="store_true", help="mark steps and phases as NVTX ranges if CUDA is available"),
    option("command", nargs="...", metavar="COMMAND", help="the training command"),
)


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.agent.attach import child
    from hotloop.agent.attach.launching import prepare_environment
    from hotloop.agent.attach.run_folder import create_run_folder, write_manifest
    from hotloop.agent.replay.collector import Collector
    from hotloop.core.settings import load_settings
    from hotloop.core.trace_plan import parse_trace_plan, parse_trace_ranks
    from hotloop.core.utilization import parse_targets
    from hotloop.pipeline.exports import RunExports, follow_run, open_targets

    targets = parse_targets(load_settings().add_targets(arguments.target))
    command = take_command(arguments, "run", "run -- python train.py")
    if "-" in (arguments.json, arguments.html):
        raise UsageError(
            "run cannot write a report to standard output, which the training command uses; use --json report.json"
        )
    check_outputs(arguments.json, arguments.html)
    check_counts(arguments, "steps_total")
    if not 0 <= arguments.stall < 1e6:
        raise UsageError(f"--stall {arguments.stall}: give a number of seconds, 0 or more")
    if arguments.bounds is not None and not 0 < arguments.bounds < 1e5:
        raise UsageError(f"--bounds {arguments.bounds:g}: give a number of minutes, more than 0")
    resolved = child.resolve_command(command, os.environ.get("PATH"))
    parse_trace_ranks(arguments.trace_ranks or "all")
    if arguments.trace_ranks is not None and arguments.trace is None:
        raise UsageError(f"--trace-ranks {arguments.trace_ranks} needs --trace PLAN, such as --trace 5:2:3")
    if arguments.trace is not None:
        emit(f"the profiler {parse_trace_plan(arguments.trace).describe()}")
    strategy = _load_strategy(arguments.strategy) if arguments.strategy is not None else None
    record_url, run_id = _check_record(arguments)
    senders = open_targets(arguments.export, os.environ)
    folder, notes = create_run_folder(arguments.name, command)
    refusal = child.refuses_agent(resolved, os.environ.get("PATH"))
    if refusal is not None:
        notes.append(refusal)
    write_manifest(folder, command, notes, targets=targets, steps_total=arguments.steps_total)
    bounded = None if arguments.bounds is None else _prepare_bounds(resolved, folder, strategy)
    options = {
        "deep": arguments.deep,
        "trace": arguments.trace,
        "trace_ranks": arguments.trace_ranks or "all",
        "nvtx": arguments.nvtx,
        "numbers": arguments.watch_numbers,
        "count_flops": bool({"mfu", "hfu"} & set(targets)),
    }
    collector = Collector(folder / "processes")
    environment = prepare_environment(os.environ, folder, options, collector, strategy)
    kills_before = child.oom_kills()
    exports = RunExports(senders, partial(follow_run, folder))
    upload = None if record_url is None else _make_upload(record_url, run_id, folder)
    stalls = partial(_make_stall_watch, folder, collector, arguments)
    watches = _Watches(folder, environment, exports, upload, collector, stalls, is_live=arguments.live)
    try:
        end = child.run_child(resolved, environment, watches.tick)
    except BaseException as error:
        watches.stop()
        if upload is not None:
            upload.kill()
        if isinstance(error, CommandNotStarted):
            _remove_run_folder(folder)
        raise
    try:  # one more Ctrl-C, wherever it comes, ends the report and not the exit code
        watches.stop()
        _write_end(folder, end, kills_before, watches)
        report = _report(arguments, folder, interrupted=end.interrupted)
        if bounded is not None:
            _measure_bounds(bounded, report, arguments, has_failed=end.shell_code != 0)
    except HotloopError as error:
        emit(str(error))
    except KeyboardInterrupt:
        emit(f"interrupted; to see the report: hotloop report {folder.name}")
    except Exception as error:
        # The training's own exit code must reach the shell, whatever is wrong with our report.
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = f" ({os.path.basename(place.tb_frame.f_code.co_filename)}:{place.tb_lineno})" if place else ""
        emit(
            f"a bug in hotloop prevented the report: {type(error).__name__}: {error}{where}; the recording is in "
            f"{folder}"
        )
    if upload is not None:
        _end_upload(upload, folder, arguments.record, arguments.record_wait)
    return end.shell_code


class _Watches:
    """Watches that look at the training from outside while it runs, about once a second."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        exports: RunExports,
        upload: RunUpload | None,
        collector: Collector,
        make_stall_watch: Callable[[], StallWatch],
        *,
        is_live: bool,
    ) -> None:
        from hotloop.agent.attach.unattached import UnattachedWatch
        from hotloop.change.tune.supervisor import Cores
        from hotloop.evidence.telemetry.devices import DeviceWatch

        self.cores = Cores()
        self.cores.sample()
        self.devices = DeviceWatch(folder, environment)
        self.exports = exports
        self._upload = upload
        self.unattached = UnattachedWatch(folder / "processes")
        self.collector = collector
        self._folder = folder
        self._over = threading.Event()
        self._live = threading.Thread(target=self._show_live, name="hotloop-live", daemon=True) if is_live else None
        self._make_stall_watch = make_stall_watch
        self._stalls: StallWatch | None = None

    def tick(self) -> None:
        self.devices.tick()
        self.exports.start()
        if self._upload is not None:
            self._upload.tick()
            self.cores.apart = self.unattached.apart = self._upload.pid
        self.cores.sample()
        self.unattached.tick()
        self.collector.start()
        if self._live is not None and self._live.ident is None:
            self._live.start()
        if self._stalls is None:  # what it imports is not waited for at the start
            self._stalls = self._make_stall_watch()
        self._stalls.tick()

    def _show_live(self) -> None:
        from hotloop.cli.live import show_live  # in its thread: what it imports would delay the training

        show_live(self._folder, sys.stderr, self.recent_cores, self._over)

    def recent_cores(self) -> float | None:
        """Share of the time of the cores that the training used of late, 0..1."""
        from hotloop.cli.live import RECENT_S
        from hotloop.evidence.telemetry.host_load import load_between

        samples = self.cores.samples
        now_s = samples[-1][0] if samples else 0.0
        load = load_between(samples, max(samples[0][0], now_s - RECENT_S), now_s, count_cores()) if samples else None
        return None if load is None else load.own_ratio

    def stop(self) -> None:
        self._over.set()
        self.devices.stop()
        self.collector.stop()


def _write_end(folder: Path, end: ChildEnd, kills_before: int | None, watches: _Watches) -> None:
    """The observations of the watches, and how the command ended."""
    import json

    from hotloop.agent.attach.child import oom_kills
    from hotloop.change.tune.supervisor import CORES_FILE
    from hotloop.core.environment import ENVIRONMENT_FILE
    from hotloop.core.recording import OUTCOME_FILE, outcome_to_json
    from hotloop.pipeline.runs import read_environment
    from hotloop.show.export.exporter import NAME as EXPORTS_FILE
    from hotloop.show.export.exporter import exports_to_json

    kills_after = oom_kills()
    watches.cores.sample(now=True)
    _write_best(folder / CORES_FILE, json.dumps(watches.cores.to_mapping() | {"allowed_cores": count_cores()}))
    if watches.collector.failure is not None:
        emit(f"part of the run was not recorded: {watches.collector.failure}")
    if watches.devices.failure is not None:
        emit(f"device monitoring stopped early: {watches.devices.failure}")
    text = outcome_to_json(
        exit_code=end.exit_code,
        signal=end.signal_number,
        duration_s=end.duration_s,
        oom_kills=None if kills_before is None or kills_after is None else kills_after - kills_before,
        unattached=watches.unattached.reason,
    )
    _write_best(folder / OUTCOME_FILE, text)
    exported = watches.exports.stop()  # they export the outcome as well
    if exported:
        _write_best(folder / EXPORTS_FILE, exports_to_json(exported))
    _write_best(folder / ENVIRONMENT_FILE, json.dumps(read_environment(folder, os.environ)))


def _make_stall_watch(folder: Path, collector: Collector, arguments: argparse.Namespace) -> StallWatch:
    from hotloop.pipeline.stalls import StallWatch

    return StallWatch(
        folder, collector.progress, emit, limit_s=arguments.stall, ends_run=arguments.stall_exit
    )  # fmt: skip


def _load_strategy(path: str) -> Strategy:
    """The strategy, checked before anything starts."""
    from hotloop.change.apply import TECHNIQUES, check_strategy
    from hotloop.core.strategy import load_strategy

    return check_strategy(load_strategy(path), TECHNIQUES, source=path)


def _prepare_bounds(command: list[str], folder: Path, strategy: Strategy | None) -> BoundedRun:
    """The command's folder as it is before the run, which the trials start from."""
    from hotloop.core.strategy import Strategy
    from hotloop.pipeline.bounding import prepare_bounds

    return prepare_bounds(tuple(command), os.environ, Path.cwd(), folder, strategy or Strategy())


def _measure_bounds(run: BoundedRun, report: Report, arguments: argparse.Namespace, *, has_failed: bool) -> None:
    """After the report was shown: the bounds as lines, and the files once more with them."""
    from hotloop.pipeline.bounding import measure_recorded_bounds

    if has_failed:
        emit("no bounds were measured, because the command failed")
        return
    report = measure_recorded_bounds(run, report, 60.0 * arguments.bounds, emit)
    arguments.quiet = True
    show_report(report, arguments, sys.stderr)


def _report(arguments: argparse.Namespace, folder: Path, *, interrupted: bool) -> Report:
    from hotloop.core.report import VERDICT_FILE, verdict_to_json
    from hotloop.pipeline.runs import no_probe, read_report

    skips_probe = arguments.no_probe or (interrupted and not arguments.probe)
    if skips_probe and not arguments.no_probe:
        emit("interrupted: opportunities were not measured (use --probe to measure them anyway)")
    probe = no_probe if skips_probe else make_probe()
    report = read_report(folder, probe=probe)
    _write_best(folder / VERDICT_FILE, verdict_to_json(report))
    show_report(report, arguments, sys.stderr)
    _name_absent_ranks(arguments.trace_ranks, report)
    return report


def _name_absent_ranks(asked: str | None, report: Report) -> None:
    """Say which ranks were to be traced and are in no training; those of other nodes are."""
    from hotloop.core.trace_plan import parse_trace_ranks

    count = max((rank.world_size for one in (report.runs or (report,)) for rank in one.ranks), default=None)
    absent = sorted(rank for rank in parse_trace_ranks(asked or "all") or () if count is not None and rank >= count)
    if absent:
        names = ", ".join(map(str, absent[:8])) + ", ..." * (len(absent) > 8)
        emit(f"--trace-ranks {asked}: the run had no rank {names}: its world size is {count}")


def _check_record(arguments: argparse.Namespace) -> tuple[str | None, str | None]:
    """Where the recording goes, and the id that the run's nodes agree on. Raises UsageError before anything starts."""
    if arguments.record is None:
        if arguments.record_id is not None:
            raise UsageError("--record-id needs --record URL")
        return None, None
    from hotloop.pipeline.recordings import check_url, choose_run_id
    from hotloop.remote.manifest import RUN_ID

    run_id = choose_run_id(arguments.record_id, os.environ)
    if run_id is not None and not RUN_ID.fullmatch(run_id):
        raise UsageError(f"--record-id {run_id!r}: use only letters, digits, '.', '_' and '-'")
    if not 0 <= arguments.record_wait < 1e6:
        raise UsageError(f"--record-wait {arguments.record_wait}: give a number of seconds, 0 or more")
    return check_url(arguments.record), run_id


def _make_upload(url: str, run_id: str | None, folder: Path) -> RunUpload:
    from hotloop.pipeline.recordings import RunUpload

    return RunUpload(url, run_id, folder, emit)


def _end_upload(upload: RunUpload, folder: Path, url: str, within_s: float) -> None:
    """Wait for what was not sent yet, until Ctrl-C or SIGTERM. The training is over: its exit code stays."""
    import shlex
    import signal

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        try:
            uploaded = upload.finish(within_s)
        except KeyboardInterrupt:
            uploaded = upload.finish(0.0)
    except (OSError, KeyboardInterrupt) as error:
        emit(
            f"it is unknown how much of {folder} was uploaded: {error!r}; to send the rest: hotloop upload {folder} "
            f"{url}"
        )
        return
    finally:
        signal.signal(signal.SIGTERM, before)
    if uploaded.reason is not None:
        where = "ANOTHER-URL" if upload.is_refused else uploaded.url
        emit(f"{uploaded.describe()}; it is kept here; to continue: hotloop upload {folder.name} {where}")
    else:
        emit(f"{uploaded.rows_count:,} rows arrived; to see the report: hotloop report {shlex.quote(uploaded.url)}")


def _remove_run_folder(folder: Path) -> None:
    (folder / "run.json").unlink(missing_ok=True)
    (folder / "processes").rmdir()
    folder.rmdir()


def _write_best(path: Path, text: str) -> None:
    """Best effort: a full disk or a folder that was deleted must not hide the training's own exit code."""
    from hotloop.core.output_file import write_whole

    try:
        write_whole(path, text)
    except OSError as error:
        emit(f"cannot write {path}: {error.strerror}")
