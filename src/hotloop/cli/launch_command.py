"""hotloop launch: a training command -> what starts it on a cluster, printed, written to a file or handed in."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path, PurePath

from hotloop.cli.options import option
from hotloop.cli.show import check_counts, check_outputs, emit, write_new
from hotloop.core.errors import CommandNotStarted, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hotloop.ahead.launch.request import LaunchRequest
    from hotloop.ahead.launch.target import LaunchTarget

ORDER, SUMMARY = 12, "write the script or manifest that starts training on a cluster, and start it"


ABOUT = {
    "description": (
        "Write the script or manifest that starts this training command on several nodes: with torchrun on each node, "
        "a signal to save before the time limit or the loss of a spot machine, and restarts. Comments explain lines "
        "that are not obvious. Prints the script or manifest unless --output or --submit is given."
    ),
    "usage": (
        "hotloop launch --target TARGET --nodes N --gpus-per-node M [options] -- COMMAND...\n"
        "       hotloop launch --target TARGET --plan PLAN.toml [options] -- COMMAND..."
    ),
}
OPTIONS = (
    option("--target", metavar="TARGET", help="slurm, trainjob, jobset, job, skypilot or dstack"),
    option("--plan", metavar="FILE", help="workload file of `hotloop plan`, whose devices determine the nodes"),
    option("--nodes", type=int, metavar="N", help="number of nodes"),
    option("--gpus-per-node", type=int, metavar="M", help="number of GPUs per node; 0 trains on the CPU"),
    option(
        "--gpu",
        metavar="NAME",
        help="device: a name from `hotloop plan`, such as h100-80g-sxm, or the cloud's own name",
    ),
    option("--cpus", type=int, metavar="N", help="number of cores per node for training (otherwise Slurm gives one)"),
    option(
        "--strategy", metavar="FILE", help="apply the techniques in this file: puts `hotloop run` before the command"
    ),
    option(
        "--run",
        metavar="RUN",
        help="a recorded run of this command, for the duration of saves and steps, and for memory and GPU use",
    ),
    option("--save-s", type=float, metavar="S", help="seconds that a save takes, instead of the recorded time"),
    option("--spot", metavar="CLOUD", choices=("aws", "gcp", "azure"), help="spot machines of aws, gcp or azure"),
    option("--time", metavar="T", help="slurm: time limit of one start, such as 24:00:00"),
    option(
        "--slurm-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="slurm: an additional #SBATCH option, such as partition=gpu; may be given several times",
    ),
    option("--image", metavar="IMAGE", help="container image for training"),
    option(
        "--volume",
        metavar="CLAIM:PATH",
        help="storage for checkpoints that outlives pods and machines, and the path where it is mounted",
    ),
    option("--shm", metavar="SIZE", help="size of /dev/shm in a container, such as 16Gi"),
    option("--interface", metavar="NAME", help="network interface between nodes, such as eth1"),
    option("--rdma", metavar="RESOURCE", help="Kubernetes: network device of each pod, such as rdma/ib"),
    option("--queue", metavar="NAME", help="Kubernetes: Kueue queue that admits all nodes at once"),
    option("--runtime", metavar="NAME", help="trainjob: training runtime (default: torch-distributed)"),
    option("--name", metavar="NAME", help="name of the job (default: the script's name)"),
    option("-o", "--output", metavar="FILE", help="write the manifest to FILE"),
    [
        option("--dry-run", action="store_true", help="only print the script or manifest; the default"),
        option("--submit", action="store_true", help="submit it with sbatch, kubectl, sky or dstack"),
    ],
    option("command", nargs="...", metavar="COMMAND", help="the training command, after --"),
)


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.ahead.launch import TARGETS, check_options
    from hotloop.ahead.launch.request import check_text

    for name, value in vars(arguments).items():
        if isinstance(value, str):
            check_text(f"--{name.replace('_', '-')}", value)
    if arguments.output == "-":
        arguments.output = None
    check_outputs(arguments.output)
    if arguments.target is None:
        raise UsageError(f"--target is missing: give one of {', '.join(TARGETS)}")
    target = TARGETS[arguments.target]
    options = sorted(set().union(*(one.takes for one in TARGETS.values())))
    check_options(target, [name for name in options if getattr(arguments, name) not in (None, [])])
    request = _read_request(arguments)
    target.check(request)
    text = target.draw(request)
    for warning in target.find_warnings(request):
        emit(f"warning: {warning}")
    if arguments.output is not None:
        write_new(arguments.output, text)
    if arguments.submit:
        return _submit(target, text, arguments.output or f"{request.name}{target.suffix}")
    if arguments.output is None:
        sys.stdout.write(text)
    elif target.submit is not None:
        emit(f"wrote {arguments.output}; to start it: {' '.join((*target.submit, arguments.output))}")
    return 0


def _read_request(arguments: argparse.Namespace) -> LaunchRequest:
    from dataclasses import replace

    from hotloop.ahead.launch.request import CLOUDS, LaunchRequest, MeasuredRun, Volume
    from hotloop.ahead.launch.training_command import read_command

    words = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    command = read_command(words, arguments.strategy)
    notes = () if arguments.strategy is None else _read_strategy(arguments.strategy)
    measured = MeasuredRun()
    if arguments.run is not None:
        from hotloop.pipeline.launches import measure_run

        measured = measure_run(arguments.run)
    if arguments.save_s is not None:
        if not 0 <= arguments.save_s < 65_535:
            raise UsageError(f"--save-s {arguments.save_s:g}: give seconds from 0 to 65534")
        measured = replace(measured, save_s=arguments.save_s)
    nodes, gpus, gpu, is_whole = _read_shape(arguments)
    per_node = command.processes_per_node or max(1, gpus)
    if gpus and per_node != gpus:
        raise UsageError(f"torchrun --nproc-per-node {per_node}, but a node has {gpus} GPUs: start one process per GPU")
    check_counts(arguments, "cpus")
    volume = None
    if arguments.volume is not None:
        claim, _, path = arguments.volume.partition(":")
        if not claim or not path.startswith("/"):
            raise UsageError(
                f"--volume {arguments.volume}: give CLAIM:PATH with an absolute path, such as runs:/storage"
            )
        volume = Volume(claim=claim, path=path)
    return LaunchRequest(
        name=arguments.name or _name_of(command.words),
        command=command,
        nodes=nodes,
        gpus_per_node=gpus,
        processes_per_node=per_node,
        measured=measured,
        gpu=gpu,
        is_whole_node=is_whole,
        cpus=arguments.cpus,
        cloud=None if arguments.spot is None else CLOUDS[arguments.spot],
        time=arguments.time,
        image=arguments.image,
        volume=volume,
        shm=arguments.shm,
        interface=arguments.interface,
        rdma=arguments.rdma,
        queue=arguments.queue,
        runtime=arguments.runtime or "torch-distributed",
        slurm_options=tuple(arguments.slurm_option),
        notes=notes,
    )


def _read_strategy(path: str) -> tuple[str, ...]:
    """The nodes' requirements for it, and the parts that they do not apply. Refuses what every node would refuse."""
    from hotloop.change.apply import TECHNIQUES, check_strategy
    from hotloop.core.strategy import describe_library_choices, load_strategy

    strategy = check_strategy(load_strategy(path), TECHNIQUES, source=path)
    library = [one.technique for one in strategy.choices if TECHNIQUES[one.technique].needs_library]
    return (
        f"every node, or its container image, needs hotloop and the file {path}",
        *([f"strategy {path}: {describe_library_choices(library)}"] if library else []),
    )


def _read_shape(arguments: argparse.Namespace) -> tuple[int, int, str | None, bool]:
    """Nodes, GPUs of a node, device, and whether the GPUs are all that the node has."""
    from hotloop.ahead.plan.hardware_files import list_hardware, read_hardware

    if arguments.plan is not None:
        from hotloop.pipeline.launches import shape_of_plan

        given = [name for name in ("nodes", "gpus_per_node", "gpu") if getattr(arguments, name) is not None]
        if given:
            raise UsageError(f"--plan and --{given[0].replace('_', '-')}: the plan also sets it; give only one of them")
        shape = shape_of_plan(arguments.plan)
        return shape.nodes, shape.gpus_per_node, shape.gpu, shape.is_whole_node
    known = read_hardware(arguments.gpu) if arguments.gpu in list_hardware() else None
    for name, least in (("nodes", 1), ("gpus_per_node", 0)):
        value = getattr(arguments, name)
        option = f"--{name.replace('_', '-')}"
        if value is None:
            raise UsageError(f"{option} is missing: give --nodes N --gpus-per-node M, or --plan PLAN.toml")
        if value < least:
            raise UsageError(f"{option} {value}: give a number of at least {least}")
    gpus = arguments.gpus_per_node
    return arguments.nodes, gpus, arguments.gpu, known is not None and known.gpus_per_node == gpus


def _name_of(words: tuple[str, ...]) -> str:
    """A name for Kubernetes from the script: letters, digits and hyphens."""
    import re

    script = next((word for word in words if word.endswith(".py")), "training")
    name = re.sub(r"[^a-z0-9]+", "-", PurePath(script).stem.lower()).strip("-")[:40].rstrip("-")
    return name if name[:1].isalpha() else f"train-{name}".rstrip("-")


def _submit(target: LaunchTarget, text: str, name: str) -> int:
    """Write it to a file and start it. Returns the program's exit code."""
    import shutil
    import subprocess

    if target.submit is None:
        raise UsageError(f"--target {target.id} starts no job: leave out --submit")
    if shutil.which(target.submit[0]) is None:
        raise CommandNotStarted(
            f"{target.submit[0]} is not on PATH; write the manifest with --output FILE and submit it on a machine "
            f"that has {target.submit[0]}",
            exit_code=127,
        )
    path = Path(name)
    write_new(str(path), text)
    emit(f"wrote {path}; running {' '.join((*target.submit, str(path)))}")
    return subprocess.run([*target.submit, str(path)], check=False).returncode
