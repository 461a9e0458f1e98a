"""hotloop plan: memory, time and cost of a training before the hardware is rented."""

from __future__ import annotations

import argparse
import os
import sys

from hotloop.cli.options import option, output_options
from hotloop.cli.show import check_outputs, show_report
from hotloop.core.errors import UsageError

ORDER, SUMMARY = 8, "predict the memory, time and cost of a training run before you rent hardware"
FILE_OPTIONS = ("why_oom", "tokens", "optimize", "gpu_counts", "gpus", "hours")
MODULE_OPTIONS = ("batch", "gpu", "python", "precision", "optimizer")


ABOUT = {
    "description": (
        "Plan a training run from a TOML file with [model], [run] and [hardware]. Predicts the memory of the device "
        "that needs the most, step time and cost, and lists ways to save memory. Needs no GPU and no torch. "
        "docs/plan.md describes the file and gives the prediction error for published runs."
    ),
    "usage": (
        "hotloop plan FILE.toml [options]\n       hotloop plan --module FILE.py:FUNCTION --batch SHAPES [options]"
    ),
}
OPTIONS = (
    option("file", nargs="?", metavar="FILE", help="a workload file"),
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
    option("--tokens", type=float, metavar="N", help="total number of training tokens, such as 1e12 (default: 1e9)"),
    option(
        "--optimize",
        choices=("time", "cost", "memory"),
        help="search over micro-batch size, recomputation, sharding, tp, pp and the device counts in --gpu-counts; "
        "the global batch size stays",
    ),
    option("--gpu-counts", metavar="N,N", help="device counts for --optimize, such as 8,64,512 (default: the file's)"),
    option("--gpus", metavar="NAME,NAME", help="devices for --optimize (default: the file's)"),
    option("--hours", type=float, metavar="H", help="time limit for training in hours, for --optimize"),
    option(
        "--precision",
        metavar="NAME",
        help="module: fp32 (default), bf16, fp16 or pure-bf16",
    ),
    option(
        "--optimizer",
        metavar="NAME",
        help="module: adamw (default), adam, sgd (momentum 0.9) or plain-sgd",
    ),
    *output_options("plan", kind="plan", html="with plots, as one HTML file"),
)


def execute(arguments: argparse.Namespace) -> int:
    check_outputs(arguments.json, arguments.html)
    report: object
    given = [name for name in MODULE_OPTIONS if getattr(arguments, name) is not None]
    if arguments.module is None and given:
        raise UsageError(f"--{given[0]} belongs to --module FILE.py:FUNCTION, which is missing")
    if arguments.module is not None:
        report = plan_module(arguments)
    elif arguments.file is None:
        raise UsageError("nothing to plan: give a workload file, or --module FILE.py:FUNCTION --batch SHAPES")
    else:
        from hotloop.ahead.plan.workload_file import read_workload_file
        from hotloop.pipeline.plans import make_plan

        _check_search(arguments)
        request = read_workload_file(arguments.file)
        gpus = [name.strip() for name in (arguments.gpus or "").split(",") if name.strip()]
        report = make_plan(
            request,
            wants_remedies=arguments.why_oom,
            tokens=_read_tokens(arguments.tokens),
            goal=arguments.optimize,
            gpu_counts=_read_counts(arguments.gpu_counts),
            gpus=gpus,
            hours=arguments.hours,
        )
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
        python=find_python(arguments.python, os.environ.get("PATH")),
    )
