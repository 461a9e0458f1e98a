"""hotloop bench: what this program and this machine can do, measured (by bench_runs.py)."""

from __future__ import annotations

import argparse

from hotloop.cli.show import add_output_options

ORDER, SUMMARY = 7, "measure parts of a training: its steps, loader, scaling and links"


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
    add_output_options(scaling, "result", kind="bench", to_stdout=False, html=html, quiet="no table")
    scaling.add_argument(
        "command",
        nargs="...",
        metavar="COMMAND",
        help="the training command without its launcher; {ranks} and {64/ranks} are replaced by numbers (for strong "
        "scaling)",
    )
    scaling.set_defaults(execute=execute, kind="scaling")

    for one in (train, loader, _add_comm(kinds)):
        one.add_argument("--budget", type=float, default=10.0, metavar="SECONDS", help="measuring time (default: 10)")
        one.add_argument("--python", metavar="FILE", help="interpreter with torch (default: the run's, else PATH's)")
        add_output_options(one, "result", kind="bench", html=html, quiet="no table")


def _add_comm(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(
        "comm",
        help="measure collectives between ranks, find slow pairs, and choose how to send gradients",
        description="Time collectives over message sizes on the live backend (NCCL where each rank has a device, else "
        "gloo). Starts --ranks processes on this host; started by torchrun or srun, it is one rank of their group, and "
        "rank 0 prints.",
    )
    parser.add_argument("--ranks", type=int, metavar="N", help="ranks to start on this host (default: 2)")
    parser.add_argument("--backend", choices=("gloo", "nccl"), help="default: nccl where each rank has a device")
    parser.add_argument("--sizes", metavar="LIST", help="message sizes (default: 1K,4K,16K and so on to 64M)")
    parser.add_argument(
        "--run",
        metavar="RUN",
        help="a recorded DDP run: also time the exchange of its gradients, and forecast each way of sending them",
    )
    parser.set_defaults(execute=execute, kind="comm")
    return parser


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.cli.bench_runs import BENCHMARKS

    return BENCHMARKS[arguments.kind](arguments)
