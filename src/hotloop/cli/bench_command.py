"""hotloop bench: what this program and this machine can do, measured (by bench_runs.py)."""

from __future__ import annotations

import argparse

from hotloop.cli.show import add_output_options

ORDER, SUMMARY = 7, "measure parts of a training: loader, scaling, links, compressors, matrix products"
SIZES = "1,10,100"
RATES = "100mbit,1gbit,10gbit"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "bench",
        help=SUMMARY,
        description="Measure parts of a training in isolation. Variants alternate in blocks; tables show minimum, "
        "median and n. docs/bench.md explains every figure.",
    )
    kinds = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    html, target = (
        "with plots, as one HTML file",
        "Python file and the name of a function without arguments that returns",
    )

    train = kinds.add_parser("train", help="time data, forward, backward, optimizer and compute separately")
    train.add_argument("target", metavar="FILE:FUNCTION", help=f"{target} (model, loader[, optimizer[, loss]])")
    train.add_argument("--device", metavar="DEVICE", help="device to train on (default: the model's device)")
    train.set_defaults(execute=execute, kind="train")

    loader = kinds.add_parser("loader", help="measure batches per second by workers, prefetching and pinning")
    loader.add_argument("target", metavar="FILE:FUNCTION", help=f"{target} a DataLoader (or a tuple that holds one)")
    loader.add_argument(
        "--workers", metavar="LIST", help="worker counts to try (default: 0,1,2,... up to the number of cores)"
    )
    loader.add_argument("--prefetch", metavar="LIST", default="2", help="prefetch factors to try (default: 2)")
    loader.add_argument(
        "--run", metavar="RUN", help="a recorded run, to state the share of its step that waits for data"
    )
    loader.set_defaults(execute=execute, kind="loader")

    scaling = kinds.add_parser("scaling", help="measure speed-up and efficiency by number of ranks")
    scaling.add_argument(
        "--ranks", metavar="LIST", default="1,2", help="numbers of ranks, such as 1,2,4 (default: 1,2)"
    )
    scaling.add_argument(
        "--repeats", type=int, default=1, metavar="N", help="launches per number of ranks (default: 1)"
    )
    scaling.add_argument(
        "--without-sync",
        action="store_true",
        help="also launch each number of ranks without DDP's gradient reduction, in a working copy of this folder; "
        "only its time is meaningful, because its ranks train independently",
    )
    add_output_options(scaling, "result", kind="bench", to_stdout=False, html=html, quiet="no table")
    scaling.add_argument(
        "command",
        nargs="...",
        metavar="COMMAND",
        help="the training command without its launcher; {ranks} and {64/ranks} are replaced by numbers (for strong "
        "scaling)",
    )
    scaling.set_defaults(execute=execute, kind="scaling")

    gemm = kinds.add_parser("gemm", help="time matrix products of a model's shapes in several number formats")
    gemm.add_argument("--run", metavar="RUN", help="a recorded run; times the matrix products of one step")
    gemm.add_argument(
        "--sizes", metavar="LIST", help="sizes to time instead of a run's: MxKxN,... such as 512x1024x1024"
    )
    gemm.add_argument(
        "--dtypes",
        metavar="LIST",
        default="float32,bfloat16",
        help="float32, bfloat16, float16 (default: the first two)",
    )
    gemm.add_argument("--device", metavar="DEVICE", help="cpu or cuda (default: cuda if available)")
    gemm.set_defaults(execute=execute, kind="gemm")
    for one in (train, loader, gemm, _add_comm(kinds), _add_compress(kinds)):
        one.add_argument("--budget", type=float, default=10.0, metavar="SECONDS", help="measuring time (default: 10)")
        one.add_argument("--python", metavar="FILE", help="interpreter with torch (default: the run's, else PATH's)")
        add_output_options(one, "result", kind="bench", html=html, quiet="no table")


def execute_train(arguments: argparse.Namespace) -> int:
    from hotloop.bench.program import split_target

    file, function = split_target(arguments.target)
    request = {"what": "train", "file": file, "function": function, "device": arguments.device}
    return _measure(arguments, request, arguments.target)


def execute_loader(arguments: argparse.Namespace) -> int:
    from hotloop.analyze.measurement import measure_compute_ns
    from hotloop.bench.figures import choose_workers
    from hotloop.bench.program import split_target
    from hotloop.cli.bench_runs import parse_integers
    from hotloop.core.machine import count_cores
    from hotloop.pipeline.launches import read_training

    file, function = split_target(arguments.target)
    given = arguments.workers
    workers = parse_integers("--workers", given, 0) if given else choose_workers(count_cores())
    prefetch = parse_integers("--prefetch", arguments.prefetch, 1)
    compute_ns = None if arguments.run is None else measure_compute_ns(read_training(arguments.run)[0])
    request = {
        "what": "loader",
        "file": file,
        "function": function,
        "workers": workers,
        "prefetch": prefetch,
        "cores": count_cores(),
    }
    return _measure(arguments, request, arguments.target, compute_ns=compute_ns)


def execute_gemm(arguments: argparse.Namespace) -> int:
    from hotloop.bench.figures import find_products, parse_sizes
    from hotloop.core.errors import UsageError
    from hotloop.pipeline.launches import read_training

    if (arguments.run is None) == (arguments.sizes is None):
        raise UsageError("give --run RUN for the shapes of a recorded model, or --sizes MxKxN,...")
    dtypes = [one.strip() for one in arguments.dtypes.split(",")]
    for one in dtypes:
        if one not in ("float32", "bfloat16", "float16"):
            raise UsageError(f"--dtypes {one}: unknown; choose from float32, bfloat16, float16")
    notes = []
    if arguments.sizes is not None:
        shapes, subject, python = parse_sizes(arguments.sizes), arguments.sizes, None
    else:
        training, python = read_training(arguments.run)
        recorded = training.lead.rank.ops
        if not recorded or not recorded.get("ops"):
            raise UsageError(
                f"{arguments.run} contains no recorded operators (recorded only on a CPU, with --deep); use --sizes"
            )
        shapes, left = find_products(recorded["ops"])
        if not shapes:
            raise UsageError(f"{arguments.run}: the recorded step contains no matrix product; use --sizes")
        notes = ["convolutions and fused attention are not included"]
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
    from hotloop.bench.figures import add_forecasts, cost_of, wait_share
    from hotloop.bench.program import find_python, run_program
    from hotloop.cli.bench_runs import SLACK_S
    from hotloop.cli.show import check_outputs
    from hotloop.core.benchmarks import BenchmarkResult
    from hotloop.core.errors import UsageError

    check_outputs(arguments.json, arguments.html)
    if not 0 < arguments.budget <= 3600:
        raise UsageError(f"--budget {arguments.budget}: give seconds between 0 and 3600")
    python = find_python(arguments.python, os.environ.get("PATH"))
    answer = run_program(
        "benchmarks", {**request, "budget_s": arguments.budget}, python, 4 * arguments.budget + SLACK_S
    )
    parser.add_argument("--ranks", type=int, metavar="N", help="ranks to start on this host (default: 2)")
    parser.add_argument("--backend", choices=("gloo", "nccl"), help="default: nccl where each rank has a device")
    parser.add_argument("--sizes", metavar="LIST", help="message sizes (default: 1K,4K,16K and so on to 64M)")
    parser.add_argument(
        "--run",
        metavar="RUN",
        help="a recorded DDP run: also time the exchange of its gradients, and forecast each way of sending them",
    )
    parser.add_argument("--nccl-log", metavar="FILE", help="a log of NCCL_DEBUG=INFO, to state the transports in use")
    parser.set_defaults(execute=execute, kind="comm")
    return parser


def execute_scaling(arguments: argparse.Namespace) -> int:
    from hotloop import __version__
    from hotloop.bench.figures import judge_scaling, summarize_scaling
    from hotloop.cli.bench_runs import parse_integers
    from hotloop.cli.show import check_outputs, emit, take_command
    from hotloop.core.benchmarks import BenchmarkResult
    from hotloop.core.errors import HotloopError, UsageError
    from hotloop.pipeline.launches import launch_ranks

    command = take_command(arguments, "run", "bench scaling -- train.py")
    if arguments.json == "-":
        raise UsageError("scaling cannot write JSON to standard output, which belongs to the training; give a file")
    if arguments.repeats < 1:
        raise UsageError(f"--repeats {arguments.repeats}: give a number of at least 1")
    check_outputs(arguments.json, arguments.html)
    sizes = sorted(set(parse_integers("--ranks", arguments.ranks, 1)))
    launches = {size: _resolve(command, size) for size in sizes}
    stem = f"scaling-{os.getpid()}"
    runs = []
    for repeat in range(arguments.repeats):
        for size in sizes if repeat % 2 == 0 else reversed(sizes):  # what drifts hits all sizes alike
            name = f"{stem}-{size}-{repeat + 1}"
            emit(f"{size} rank{'s' if size > 1 else ''}, launch {repeat + 1}")
            runs.append(launch_ranks(launches[size], size, name))
            if arguments.without_sync and size > 1:
                if not runs[-1].has_ddp:
                    emit("the training does not use DistributedDataParallel: there is no gradient sync to leave out")
                    continue
                emit(f"{size} ranks, launch {repeat + 1} without gradient sync")
                runs.append(_launch_unsynced(launches[size], size, f"{name}-unsynced"))
    try:
        rows, kind, notes = summarize_scaling(runs)
    except ZeroDivisionError:
        raise HotloopError("a recorded run has no time per step; record it again with more steps") from None
    result = BenchmarkResult(
        tool_version=__version__,
        benchmark="scaling",
        subject=" ".join(command),
        tables=(tuple(rows),),
        facts={"scaling": kind, "runs": f".hotloop/{stem}-*"},
        notes=tuple(notes),
        verdict=tuple(judge_scaling(runs, rows)),
    )
    parser.add_argument(
        "target",
        nargs="?",
        metavar="FILE:FUNCTION",
        help="Python file and the name of a function without arguments that returns (model, loader[, optimizer[, "
        "loss]]): compress its gradients of one batch",
    )
    parser.add_argument(
        "--sizes", metavar="LIST", default=SIZES, help=f"random elements to try, in units of 2**20 (default: {SIZES})"
    )
    parser.add_argument(
        "--links", metavar="LIST", default=RATES, help=f"rates of links to state times for (default: {RATES})"
    )
    parser.add_argument("--device", metavar="DEVICE", help="device to compress on (default: the model's, or cpu)")
    parser.set_defaults(execute=execute, kind="compress")
    return parser


def _resolve(command: Sequence[str], size: int) -> list[str]:
    """The command under torchrun of the Python that it names."""
    from hotloop.attach.child import resolve_command
    from hotloop.bench.figures import fill_ranks, under_torchrun

    return BENCHMARKS[arguments.kind](arguments)
