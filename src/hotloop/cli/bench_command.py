"""hotloop bench: what this program and this machine can do, measured."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from hotloop.core.benchmarks import BenchmarkResult

SLACK_S = 300.0
"""What importing and building the user's objects may take beside the measuring."""


def add_parser(subparsers: Any, summary: str) -> None:
    parser = subparsers.add_parser(
        "bench",
        help=summary,
        description="Measure parts of a training alone. Arms take turns in blocks; minimum, median and n are shown. "
        "docs/bench.md says what each figure is.",
    )
    kinds = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    target = "Python file and a function in it without arguments that returns"

    train = kinds.add_parser("train", help="data, forward, backward, optimizer and compute, each alone")
    train.add_argument("target", metavar="FILE:FUNCTION", help=f"{target} (model, loader[, optimizer[, loss]])")
    train.add_argument("--device", metavar="DEVICE", help="where the model is (default: where it is)")
    train.set_defaults(execute=execute_train)

    loader = kinds.add_parser("loader", help="batches per second by workers, prefetching and pinning")
    loader.add_argument("target", metavar="FILE:FUNCTION", help=f"{target} a DataLoader (or a tuple that holds one)")
    loader.add_argument("--workers", metavar="LIST", help="numbers of workers to try (default: 0,1,2,.. to the cores)")
    loader.add_argument("--prefetch", metavar="LIST", default="2", help="prefetch factors to try (default: 2)")
    loader.add_argument("--run", metavar="RUN", help="a recorded run of the training, to tell the share of its step")
    loader.set_defaults(execute=execute_loader)

    scaling = kinds.add_parser("scaling", help="speed-up and efficiency of a training by its number of ranks")
    scaling.add_argument(
        "--ranks", metavar="LIST", default="1,2", help="numbers of ranks, such as 1,2,4 (default: 1,2)"
    )
    scaling.add_argument("--repeats", type=int, default=1, metavar="N", help="launches of each number (default: 1)")
    scaling.add_argument(
        "--without-sync",
        action="store_true",
        help="launch each number also with no gradients reduced by DDP, in a working copy of this folder: only its "
        "time means anything, and what it writes by absolute paths comes from ranks that trained apart",
    )
    scaling.add_argument("--json", metavar="FILE", help="write the result as JSON to FILE")
    scaling.add_argument("--html", metavar="FILE", help="write the result with plots as one HTML file")
    scaling.add_argument("-q", "--quiet", action="store_true", help="print no table")
    scaling.add_argument(
        "command",
        nargs="...",
        metavar="COMMAND",
        help="the training without its launcher; {ranks} and {64/ranks} in it become numbers (for strong scaling)",
    )
    scaling.set_defaults(execute=execute_scaling)

    gemm = kinds.add_parser("gemm", help="matrix products of a model's shapes in several number formats")
    gemm.add_argument("--run", metavar="RUN", help="a recorded run: its products of one step are timed")
    gemm.add_argument("--sizes", metavar="LIST", help="sizes instead: MxKxN,... such as 512x1024x1024")
    gemm.add_argument(
        "--dtypes",
        metavar="LIST",
        default="float32,bfloat16",
        help="float32, bfloat16, float16 (default: the first two)",
    )
    gemm.add_argument("--device", metavar="DEVICE", help="cpu or cuda (default: cuda where there is one)")
    gemm.set_defaults(execute=execute_gemm)
    for one in (train, loader, gemm):
        one.add_argument("--budget", type=float, default=10.0, metavar="SECONDS", help="time to measure (default: 10)")
        one.add_argument("--python", metavar="FILE", help="interpreter with torch (default: the run's, else PATH's)")
        one.add_argument("--json", metavar="FILE", help="write the result as JSON to FILE, or - for standard output")
        one.add_argument("--html", metavar="FILE", help="write the result with plots as one HTML file")
        one.add_argument("-q", "--quiet", action="store_true", help="print no table")


def execute_train(arguments: argparse.Namespace) -> int:
    from hotloop.bench.program import split_target

    file, function = split_target(arguments.target)
    request = {"what": "train", "file": file, "function": function, "device": arguments.device}
    return _measure(arguments, request, arguments.target)


def execute_loader(arguments: argparse.Namespace) -> int:
    from hotloop.bench.program import split_target

    file, function = split_target(arguments.target)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    most = [0, 1, 2, 4, 8, 16, 32]
    workers = _integers("--workers", arguments.workers, 0) if arguments.workers else [n for n in most if n <= cores]
    prefetch = _integers("--prefetch", arguments.prefetch, 1)
    compute_ns = None
    if arguments.run is not None:
        training, _ = _read_training(arguments.run)
        step = training.lead.rank.breakdown
        compute_ns = training.lead.rank.step_mean_ns - step.mean_ns("input_wait")
        batches = max(1.0, training.lead.rank.mean["batches"])
        compute_ns /= batches
    request = {"what": "loader", "file": file, "function": function, "workers": workers, "prefetch": prefetch}
    return _measure(arguments, request, arguments.target, compute_ns=compute_ns)


def execute_gemm(arguments: argparse.Namespace) -> int:
    from hotloop.bench.products import find_products, parse_sizes
    from hotloop.core.errors import UsageError

    if (arguments.run is None) == (arguments.sizes is None):
        raise UsageError("give --run RUN for the shapes of a recorded model, or --sizes MxKxN,...")
    dtypes = [one.strip() for one in arguments.dtypes.split(",")]
    for one in dtypes:
        if one not in ("float32", "bfloat16", "float16"):
            raise UsageError(f"--dtypes {one}: known are float32, bfloat16, float16")
    notes = []
    if arguments.sizes is not None:
        shapes, subject, python = parse_sizes(arguments.sizes), arguments.sizes, None
    else:
        training, python = _read_training(arguments.run)
        recorded = training.lead.rank.ops
        if not recorded or not recorded.get("ops"):
            raise UsageError(
                f"{arguments.run} holds no operators of a step (they are noted on a CPU, unless --no-deep): use --sizes"
            )
        shapes, left = find_products(recorded["ops"])
        if not shapes:
            raise UsageError(f"{arguments.run}: the noted step has no matrix product: use --sizes")
        notes = ["convolutions and fused attention are no part of this"]
        if left:
            notes.append(f"{left} smaller products were left out")
        subject = f"products of one step of {arguments.run}"
    if arguments.python is None:
        arguments.python = python
    request = {"what": "gemm", "shapes": shapes, "dtypes": dtypes, "device": arguments.device}
    return _measure(arguments, request, subject, notes=notes)


def _measure(
    arguments: argparse.Namespace,
    request: Mapping[str, Any],
    subject: str,
    *,
    notes: Sequence[str] = (),
    compute_ns: float | None = None,
) -> int:
    from hotloop import __version__
    from hotloop.attach.child import SOURCE
    from hotloop.bench.program import find_python, run_program
    from hotloop.cli.show import check_outputs
    from hotloop.core.benchmarks import BenchmarkResult
    from hotloop.core.errors import UsageError

    check_outputs(arguments.json, arguments.html)
    if not 0 < arguments.budget <= 3600:
        raise UsageError(f"--budget {arguments.budget}: give seconds between 0 and 3600")
    python = find_python(arguments.python, os.environ.get("PATH"))
    answer = run_program(
        {**request, "budget_s": arguments.budget}, python, SOURCE.parent, 4 * arguments.budget + SLACK_S
    )
    tables = [list(table) for table in answer["tables"]]
    if compute_ns is not None:
        for row in tables[0]:
            row["wait_of_step_ratio"] = _wait_share(row["batch_ns"], compute_ns, workers=row["workers"])
        notes = [*notes, "wait of step: of the recorded step, if workers have cores of their own"]
    result = BenchmarkResult(
        tool_version=__version__,
        benchmark=str(request["what"]),
        subject=subject,
        tables=tuple(tuple(table) for table in tables),
        facts=answer["facts"],
        machine=answer["machine"],
        notes=(*answer["notes"], *notes),
    )
    return _show(arguments, result)


def _wait_share(batch_ns: float | None, compute_ns: float, *, workers: int) -> float | None:
    """Share of a step that waits when a batch takes ``batch_ns`` to come and everything else ``compute_ns``.

    Workers load while the step computes; without them the step loads by itself.
    """
    if batch_ns is None:
        return None
    if workers == 0:
        return batch_ns / (batch_ns + compute_ns)
    return max(0.0, batch_ns - compute_ns) / max(batch_ns, compute_ns)


def execute_scaling(arguments: argparse.Namespace) -> int:
    from hotloop import __version__
    from hotloop.bench.scaling import summarize_scaling
    from hotloop.cli.show import check_outputs
    from hotloop.core.benchmarks import BenchmarkResult
    from hotloop.core.errors import HotloopError, UsageError

    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise UsageError("no command to run; write: hotloop bench scaling -- train.py")
    if arguments.json == "-":
        raise UsageError("scaling writes its JSON to a file (standard output belongs to the training)")
    if arguments.repeats < 1:
        raise UsageError(f"--repeats {arguments.repeats}: give a number of at least 1")
    check_outputs(arguments.json, arguments.html)
    sizes = sorted(set(_integers("--ranks", arguments.ranks, 1)))
    launches = {size: _launch_words(command, size) for size in sizes}
    stem = f"scaling-{os.getpid()}"
    runs = []
    for repeat in range(arguments.repeats):
        for size in sizes if repeat % 2 == 0 else reversed(sizes):  # what drifts hits all sizes alike
            name = f"{stem}-{size}-{repeat + 1}"
            print(f"hotloop: {size} rank{'s' if size > 1 else ''}, launch {repeat + 1}", file=sys.stderr)
            runs.append(_launch(launches[size], size, name))
            if arguments.without_sync and size > 1:
                if not runs[-1].has_ddp:
                    print("hotloop: no DistributedDataParallel was seen: nothing to leave out", file=sys.stderr)
                    continue
                print(f"hotloop: {size} ranks, launch {repeat + 1} without gradient sync", file=sys.stderr)
                runs.append(_launch_unsynced(launches[size], size, f"{name}-unsynced"))
    try:
        rows, kind, notes = summarize_scaling(runs)
    except ZeroDivisionError:
        raise HotloopError("a recorded run has no time per step: record it again with more steps") from None
    result = BenchmarkResult(
        tool_version=__version__,
        benchmark="scaling",
        subject=" ".join(command),
        tables=(tuple(rows),),
        facts={"scaling": kind, "runs": f".hotloop/{stem}-*"},
        notes=tuple(notes),
    )
    return _show(arguments, result)


def _launch_words(command: Sequence[str], size: int) -> list[str]:
    """The command under torchrun of the Python that it names."""
    from hotloop.attach.child import resolve_command
    from hotloop.core.errors import UsageError

    words = resolve_command([_fill(word, size) for word in command], os.environ.get("PATH"))
    name = os.path.basename(words[0])
    if not name.startswith("python"):
        raise UsageError(f"{words[0]}: give the training without its launcher: hotloop bench scaling -- train.py")
    return [words[0], "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size), *words[1:]]


def _fill(word: str, size: int) -> str:
    """``{ranks}`` and ``{64/ranks}`` as numbers."""
    import re

    from hotloop.core.errors import UsageError

    def number(match: re.Match[str]) -> str:
        if match.group(1) is None:
            return str(size)
        total = int(match.group(1))
        if total % size:
            raise UsageError(f"{match.group(0)}: {total} cannot be split over {size} ranks; choose other --ranks")
        return str(total // size)

    return re.sub(r"\{(?:(\d{1,12})/)?ranks\}", number, word)


def _launch_unsynced(words: list[str], size: int, name: str) -> Any:
    """One recorded launch in which DDP reduces no gradients: in a working copy, so that no checkpoint is spoiled."""
    import tempfile
    from pathlib import Path

    from hotloop.tune.trials import protect_environment
    from hotloop.tune.workspace import make_workspace, plan_workspace, remove_workspace

    plan = plan_workspace(Path.cwd(), without=[Path.cwd() / ".hotloop"])
    for warning in plan.warnings:
        print(f"hotloop: {warning}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="hotloop-unsynced-") as folder:
        copy = make_workspace(plan, Path(folder) / "work")
        try:
            variables = protect_environment(os.environ)
            return _launch(words, size, name, variables=variables, cwd=copy, unsynced=True)
        finally:
            remove_workspace(copy)


def _launch(
    words: list[str],
    size: int,
    name: str,
    *,
    variables: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    unsynced: bool = False,
) -> Any:
    """One recorded launch. Raises HotloopError when the command fails or trains nothing."""
    from hotloop.analyze.run_changes import count_units, join_training
    from hotloop.attach import child
    from hotloop.attach.run_folder import create_run_folder, write_manifest
    from hotloop.bench.scaling import ScalingRun
    from hotloop.core.errors import HotloopError

    made, notes = create_run_folder(name, words)
    write_manifest(made, words, notes)
    options = {"deep": False, "unsynced": unsynced}
    end = child.run_child(words, child.attach_environment(variables, made, options), cwd=cwd)
    (made / "outcome.json").write_text(
        f'{{"schema": "hotloop.outcome/1", "exit_code": {end.exit_code if end.exit_code is not None else "null"},'
        f' "signal": {end.signal_number if end.signal_number is not None else "null"},'
        f' "duration_s": {end.duration_s}, "oom_kills": null}}'
    )
    if end.shell_code:
        raise HotloopError(f"the training with {size} ranks ended with {end.shell_code}; what it said stands above")
    training, _ = _read_training(str(made))
    joined = join_training(training)
    ranks = training.analysis.ranks
    if len(ranks) != size:
        raise HotloopError(f"{len(ranks)} processes trained where {size} were started: does the script use torchrun?")
    exposed = [
        rank.ddp.exposed_comm_ns * max(1.0, rank.mean["backwards"])
        for rank in ranks
        if rank.ddp is not None and rank.ddp.exposed_comm_ns is not None
    ]
    unit = training.analysis.unit
    return ScalingRun(
        ranks=size,
        step_ns=int(joined.parts_ns.sum()) / (joined.steps_count * joined.ranks_count),
        unit=unit,
        units_per_step=count_units(training, unit) if unit != "step" else None,
        exposed_ns=sum(exposed) / len(exposed) if len(exposed) == size else None,
        threads=training.lead.rank.torch_threads,
        is_synced=not unsynced,
        has_ddp=all(rank.ddp is not None for rank in ranks),
    )


def _read_training(run: str) -> tuple[Any, str | None]:
    """The largest training of a recorded run, and its interpreter."""
    from pathlib import Path

    from hotloop.analyze.trainings import analyze_run
    from hotloop.core.errors import RecordingError
    from hotloop.trace.recording import find_run, read_run

    recording = read_run(find_run(run, Path.cwd()))
    trainings = analyze_run(recording.processes)
    if not trainings:
        raise RecordingError(f"{run} holds no step of a training; `hotloop report` says what was seen")
    pid = trainings[0].lead.rank.pid
    process = next((p.process for p in recording.processes if p.process.get("pid") == pid), {})
    python = process.get("executable")
    return trainings[0], python if isinstance(python, str) and os.access(python, os.X_OK) else None


def _integers(option: str, text: str, least: int) -> list[int]:
    from hotloop.core.errors import UsageError

    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and least <= int(word) <= 4096 for word in words):
        raise UsageError(f"{option} {text}: write numbers of at least {least} with commas, such as 1,2,4")
    return list(dict.fromkeys(int(word) for word in words))


def _show(arguments: argparse.Namespace, result: BenchmarkResult) -> int:
    from hotloop.cli.show import show_report

    show_report(
        result,
        json_path=arguments.json,
        html_path=arguments.html,
        quiet=arguments.quiet or arguments.json == "-",
        stream=sys.stdout,
    )
    sys.stdout.flush()
    return 0
