"""hotloop bench: what this program and this machine can do, measured (by bench_runs.py)."""

from __future__ import annotations

import argparse

from hotloop.cli.options import option, output_options

ORDER, SUMMARY = 7, "measure parts of training: steps, loader, scaling and links"
HTML = "with plots, as one HTML file"
TARGET = "Python file and the name of a function without arguments that returns"
MEASURED = (
    option("--budget", type=float, default=10.0, metavar="SECONDS", help="measuring time (default: 10)"),
    option("--python", metavar="FILE", help="interpreter with torch (default: the run's, else PATH's)"),
    *output_options("result", kind="bench", html=HTML, quiet="no table"),
)
ABOUT = {
    "description": "Measure parts of training in isolation. Variants alternate in blocks; tables show minimum, "
    "median and n. docs/bench.md explains every figure."
}
OPTIONS = ()
KINDS = {
    "train": (
        {"help": "time data, forward, backward, optimizer and compute separately"},
        (
            option("target", metavar="FILE:FUNCTION", help=f"{TARGET} (model, loader[, optimizer[, loss]])"),
            option("--device", metavar="DEVICE", help="device to train on (default: the model's device)"),
            *MEASURED,
        ),
    ),
    "loader": (
        {"help": "measure batches per second by workers, prefetching and pinning"},
        (
            option("target", metavar="FILE:FUNCTION", help=f"{TARGET} a DataLoader (or a tuple that holds one)"),
            option(
                "--workers", metavar="LIST", help="worker counts to try (default: 0,1,2,... up to the number of cores)"
            ),
            option("--prefetch", metavar="LIST", default="2", help="prefetch factors to try (default: 2)"),
            option("--run", metavar="RUN", help="a recorded run, to report the share of its step that waits for data"),
            *MEASURED,
        ),
    ),
    "scaling": (
        {"help": "measure speedup and efficiency by number of ranks"},
        (
            option("--ranks", metavar="LIST", default="1,2", help="numbers of ranks, such as 1,2,4 (default: 1,2)"),
            option("--repeats", type=int, default=1, metavar="N", help="launches per number of ranks (default: 1)"),
            *output_options("result", kind="bench", to_stdout=False, html=HTML, quiet="no table"),
            option(
                "command",
                nargs="...",
                metavar="COMMAND",
                help="the training command without its launcher; {ranks} and {64/ranks} are replaced with numbers "
                "(for strong scaling)",
            ),
        ),
    ),
    "comm": (
        {
            "help": "measure collectives between ranks, and choose how to send gradients",
            "description": "Time collectives over message sizes on the live backend (NCCL if each rank has a device, "
            "otherwise gloo). Starts --ranks processes on this host. If torchrun or srun starts this command, each "
            "process is one rank of their group, and rank 0 prints the result.",
        },
        (
            option("--ranks", type=int, metavar="N", help="ranks to start on this host (default: 2)"),
            option("--backend", choices=("gloo", "nccl"), help="default: nccl if each rank has a device"),
            option("--sizes", metavar="LIST", help="message sizes (default: 1K,4K,16K and so on to 64M)"),
            option(
                "--run",
                metavar="RUN",
                help="a recorded DDP run: also time the exchange of its gradients, and forecast each way of "
                "sending them",
            ),
            *MEASURED,
        ),
    ),
}


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.cli.bench_runs import BENCHMARKS

    return BENCHMARKS[arguments.kind](arguments)
