"""hotloop plan: memory, time and cost of a training before the hardware is rented."""

from __future__ import annotations

import argparse
import os
import sys

from hotloop import __version__
from hotloop.cli.options import option, output_options
from hotloop.cli.show import check_outputs, emit, show_report, write_new
from hotloop.core.errors import UsageError

ORDER, SUMMARY = 8, "predict the memory, time and cost of a training run before you rent hardware"
ZERO_OPTIONS = ("params", "ranks", "precision", "optimizer")
FILE_OPTIONS = (
    "why_oom", "measured", "tokens", "scaling", "optimize", "gpu_counts", "gpus", "hours", "spot",
    "write_strategy", "params",
)  # fmt: skip
MODULE_OPTIONS = ("batch", "gpu", "python")


ABOUT = {
    "description": (
        "Plan a training run from a TOML file with [model], [run] and [hardware]. Predicts the memory of the device "
        "that needs the most, step time and cost, and lists ways to save memory. Needs no GPU and no torch. "
        "docs/plan.md describes the file and gives the prediction error for published runs."
    ),
    "usage": (
        "hotloop plan FILE.toml [options]\n       hotloop plan zero --params N --ranks N [options]\n"
        "       hotloop plan --module FILE.py:FUNCTION --batch SHAPES [options]"
    ),
}
OPTIONS = (
    option("file", nargs="?", metavar="FILE", help="a workload file, or the word zero for ZeRO's table"),
    option(
        "--module",
        metavar="FILE.py:FUNCTION",
        help="a function that returns any nn.Module: a child process traces its steps with fake tensors",
    ),
    option(
        "--batch",
        metavar="SHAPES",
        help='module: its arguments, such as "input_ids:int64[8,1024],labels:int64[8,1024]" or "float32[32,3,224,224]",'
        " or FILE.py:FUNCTION that returns them",
    ),
    option("--gpu", metavar="NAME", help="module: device to plan for (default: h100-80g-sxm), or cpu"),
    option("--python", metavar="FILE", help="module: interpreter that has torch (default: PATH's)"),
    option("--why-oom", action="store_true", help="rank the ways to save memory, even if the run fits easily"),
    option(
        "--measured",
        action="append",
        default=[],
        metavar="FILE.toml=RUN",
        help="calibrate the predicted time with the step time of a recorded run and its workload file; may be given "
        "several times",
    ),
    option("--tokens", type=float, metavar="N", help="total number of training tokens, such as 1e12 (default: 1e9)"),
    option(
        "--scaling",
        nargs="?",
        const="weak",
        choices=("weak", "strong"),
        help="also plan the same run on more devices, doubling their number up to this",
    ),
    option(
        "--optimize",
        choices=("time", "cost", "memory"),
        help="search over micro-batch size, recomputation, sharding, tp, pp and the device counts in --gpu-counts; "
        "the global batch size stays",
    ),
    option("--gpu-counts", metavar="N,N", help="device counts for --optimize, such as 8,64,512 (default: the file's)"),
    option("--gpus", metavar="NAME,NAME", help="devices for --optimize (default: the file's)"),
    option("--hours", type=float, metavar="H", help="time limit for training in hours, for --optimize"),
    option("--spot", action="store_true", help="also plan for spot devices, and show the price at which they pay off"),
    option(
        "--write-strategy",
        metavar="FILE",
        help="write the plan, or the best plan of --optimize, as a new strategy file; comments explain which parts "
        "need hotloop's Trainer or apply_strategy, and which parts `hotloop run --strategy` applies to an "
        "unmodified script",
    ),
    option("--params", type=float, metavar="N", help="zero: number of parameters, such as 175e9"),
    option("--ranks", type=int, metavar="N", help="zero, module: number of data-parallel ranks (FSDP2)"),
    option(
        "--precision",
        metavar="NAME",
        help="zero: mixed (2 + 2 + 12 bytes per parameter; default) or fp32 (4 + 4 + 8); module: fp32 (default), bf16, "
        "fp16 or pure-bf16",
    ),
    option(
        "--optimizer",
        metavar="NAME",
        help="zero: adamw (default), sgd, adafactor or adamw-8bit; module: adamw (default), adam, sgd (momentum 0.9) "
        "or plain-sgd",
    ),
    *output_options("plan", kind="plan", html="with plots, as one HTML file"),
)


def execute(arguments: argparse.Namespace) -> int:
    check_outputs(arguments.json, arguments.html, arguments.write_strategy)
    report: object
    given = [name for name in MODULE_OPTIONS if getattr(arguments, name) is not None]
    if arguments.module is None and given:
        raise UsageError(f"--{given[0]} belongs to --module FILE.py:FUNCTION, which is missing")
    if arguments.module is not None:
        report = plan_module(arguments)
    elif arguments.file is None:
        raise UsageError("nothing to plan: give a workload file, `zero`, or --module FILE.py:FUNCTION --batch SHAPES")
    elif arguments.file == "zero":
        from hotloop.ahead.plan.planner import build_zero_report

        _refuse(arguments, FILE_OPTIONS[:-1], "a workload file; leave it out with `zero`")
        if arguments.params is None or arguments.ranks is None:
            raise UsageError("plan zero needs --params and --ranks, such as --params 175e9 --ranks 64")
        precision, optimizer = arguments.precision or "mixed", arguments.optimizer or "adamw"
        report = build_zero_report(arguments.params, arguments.ranks, precision, optimizer, __version__)
    else:
        from hotloop.ahead.plan.workload_file import read_workload_file
        from hotloop.pipeline.plans import draw_planned_strategy, make_plan

        given = [name for name in ZERO_OPTIONS if getattr(arguments, name) is not None]
        if given:
            raise UsageError(f"--{given[0]} belongs to `hotloop plan zero`; a workload file contains this value itself")
        _check_search(arguments)
        request = read_workload_file(arguments.file)
        gpus = [name.strip() for name in (arguments.gpus or "").split(",") if name.strip()]
        report = make_plan(
            request,
            measured=arguments.measured,
            wants_remedies=arguments.why_oom,
            tokens=_read_tokens(arguments.tokens),
            scaling=arguments.scaling,
            goal=arguments.optimize,
            gpu_counts=_read_counts(arguments.gpu_counts),
            gpus=gpus,
            hours=arguments.hours,
            spot=arguments.spot,
        )
        if arguments.write_strategy is not None:
            write_new(arguments.write_strategy, draw_planned_strategy(request, report, gpus))
            emit(f"wrote {arguments.write_strategy}")
    show_report(report, arguments, sys.stdout)
    return 0


def _check_search(arguments: argparse.Namespace) -> None:
    given = [name for name in ("gpu_counts", "gpus", "hours") if getattr(arguments, name) is not None]
    if given and not arguments.optimize:
        raise UsageError(f"--{given[0].replace('_', '-')} belongs to --optimize: add --optimize time, cost or memory")


def _read_tokens(tokens: float | None) -> int | None:
    if tokens is None:
        return None
    if not 1 <= tokens < float("inf"):
        raise UsageError(f"--tokens {tokens:g}: give a number of 1 or more, such as 1e12")
    return round(tokens)


def _read_counts(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--gpu-counts {text}: give whole numbers, such as 8,64,512") from None


def _refuse(arguments: argparse.Namespace, names: tuple[str, ...], home: str) -> None:
    foreign = [name for name in names if getattr(arguments, name)]
    if foreign:
        raise UsageError(f"--{foreign[0].replace('_', '-')} belongs to {home}")


def plan_module(arguments: argparse.Namespace) -> object:
    """The plan of any module. Raises UsageError."""

    from hotloop.measure.bench.program import find_python
    from hotloop.pipeline.plans import make_module_plan

    if arguments.file is not None:
        raise UsageError(f"{arguments.file} and --module: give only one of them")
    _refuse(arguments, FILE_OPTIONS, "a workload file; leave it out with --module")
    if arguments.batch is None:
        raise UsageError('--module needs --batch, such as --batch "input_ids:int64[8,1024]"')
    return make_module_plan(
        arguments.module,
        arguments.batch,
        gpu=arguments.gpu or "h100-80g-sxm",
        precision=arguments.precision or "fp32",
        optimizer=arguments.optimizer or "adamw",
        ranks=1 if arguments.ranks is None else arguments.ranks,
        python=find_python(arguments.python, os.environ.get("PATH")),
    )
