"""The words of a command -> LaunchLine: the launcher and the script, the number of nodes and devices, the address.

    srun -N 2 torchrun --nproc-per-node 8 train.py --lr 1e-3
    accelerate launch --num_processes 16 --machine_rank $SLURM_NODEID train.py
    env OMP_NUM_THREADS=4 deepspeed --num_gpus 8 train.py            numactl -N 0 python -m package.train

Depends only on the words: the caller first replaces variables whose values are known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hotloop.core import torchrun_options
from hotloop.core.sbatch_options import FLAGS as SLURM_FLAGS
from hotloop.core.sbatch_options import SHORT as SLURM_SHORT

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
PYTHON = re.compile(r"(?:python|pypy)[\d.]*$")
SHELLS = ("bash", "sh", "zsh", "dash")
STEPS = ("srun", "mpirun", "mpiexec", "orterun", "prun", "horovodrun", "jsrun", "ibrun")
"""Programs that start another program several times."""
_PREFIXES = """
env exec time nohup command nice ionice numactl taskset timeout stdbuf unbuffer setsid singularity apptainer docker
podman enroot shifter conda mamba micromamba uv poetry pixi pipenv hotloop nsys ncu py-spy strace catchsegv
"""
PREFIXES = frozenset(_PREFIXES.split())
"""Programs that start another program once, and whose first arguments are not a program."""
RUN_MODULES = {"torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun", "torchrun": "torchrun"}
RUN_MODULES |= {"accelerate.commands.launch": "accelerate", "deepspeed.launcher.runner": "deepspeed"}
_NAMES = {
    "num-machines": "nnodes", "num-nodes": "nnodes", "machine-rank": "node-rank", "main-process-ip": "master-addr",
    "main-process-port": "master-port", "num-gpus": "nproc-per-node", "nproc": "nproc-per-node", "np": "ntasks",
    "npernode": "ntasks-per-node", "ppn": "ntasks-per-node", "perhost": "ntasks-per-node", "H": "hostfile",
    "cpus": "cpus-per-task", "tasks-per-node": "ntasks-per-node", "oversubscribe": "overcommit",
}  # fmt: skip
"""Options that mean the same under another name -> the name of torchrun or sbatch."""
_FLAGS = """
torchrun module no-python run-path virtual-local-rank standalone help use-env
accelerate cpu multi-gpu tpu tpu-use-cluster tpu-use-sudo use-mps-device use-xpu ipex quiet debug module no-python help
accelerate use-deepspeed use-fsdp use-megatron-lm use-parallelism-config mpirun same-network enable-cpu-affinity
deepspeed module no-python no-local-rank no-ssh no-ssh-check force-multi save-pid elastic-training help
deepspeed bind-cores-to-rank detect-nvlink-pairs
srun exclusive exact overlap label unbuffered multi-prog pty contiguous overcommit quiet verbose wait-all-nodes
srun no-container-mount-home container-mount-home container-writable container-readonly container-remap-root
srun no-container-remap-root no-container-entrypoint container-entrypoint use-min-nodes spread-job wait-for-switch
srun no-kill disable-status immediate preserve-env oversubscribe kill-on-bad-exit
mpirun allow-run-as-root oversubscribe overcommit bynode bysocket tag-output nolocal
"""
FLAGS = frozenset((words[0], flag) for words in map(str.split, _FLAGS.splitlines()) for flag in words[1:])
"""Options without a value (or whose value must follow ``=``), by launcher."""
_MPI_VALUES = {"mca": 2, "x": 1, "genv": 2, "env": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLine:
    """``launcher`` is torchrun, accelerate, deepspeed or, for a script that starts itself, python.

    ``options`` are the launcher's by torchrun's names with dashes (accelerate's total is ``num-processes``); ``step``
    and ``step_options`` are the program before it that starts it several times (srun, mpirun) and its options, by
    sbatch's long names. ``variables`` are set in the command; ``prefixes`` are the other words before the launcher.
    """

    launcher: str
    script: str
    is_module: bool
    arguments: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    step: str = ""
    step_options: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    prefixes: tuple[str, ...] = ()

    def number(self, name: str) -> int | None:
        """An option of the launcher as a number; None if it is absent or not a number."""
        value = self.options.get(name, "").partition(":")[0]
        return int(value) if value.isdecimal() else None

    @property
    def nodes(self) -> int | None:
        return self.number("nnodes")

    @property
    def processes_per_node(self) -> int | None:
        """The processes that the launcher starts on a node; None if it (``gpu``, ``auto``) or a variable decides."""
        total = self.number("num-processes")
        return total // max(1, self.nodes or 1) if total is not None else self.number("nproc-per-node")

    @property
    def address(self) -> str:
        """Where the processes meet: host, or host:port of the rendezvous; empty if not given."""
        return self.options.get("rdzv-endpoint") or self.options.get("master-addr", "")

    @property
    def port(self) -> str:
        return self.options.get("rdzv-endpoint", "").rpartition(":")[2] or self.options.get("master-port", "")

    @property
    def is_standalone(self) -> bool:
        return "standalone" in self.options


@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedWords:
    """A command without the programs that start it: ``words`` begin with the program itself."""

    words: tuple[str, ...]
    step: str
    step_options: Mapping[str, str]
    variables: Mapping[str, str]
    prefixes: tuple[str, ...]


def read_launch(words: Sequence[str]) -> LaunchLine | None:
    """None if the words do not start a Python program."""
    wrapped = unwrap(words)
    rest = list(wrapped.words)
    while rest and PYTHON.match(_base(rest[0])) and len(rest) > 1 and re.match(r"-(?![mc]$)", rest[1]):
        rest[1 : 3 if rest[1] in ("-W", "-X") else 2] = []
    launcher = _name_launcher(rest)
    options: dict[str, str] = {}
    if launcher == "python":
        target = rest[1:] if PYTHON.match(_base(rest[0])) else rest
        is_module = target[:1] == ["-m"]
        target = target[is_module:]
    elif launcher:
        skipped = 3 if PYTHON.match(_base(rest[0])) else 2 if launcher == "accelerate" else 1
        options, target = read_options(rest[skipped:], launcher)
        is_module = "module" in options
    if not launcher or not target or target[0] == "-c":
        return None
    return LaunchLine(
        launcher=launcher,
        script=target[0],
        is_module=is_module,
        arguments=tuple(target[1:]),
        options=options,
        step=wrapped.step,
        step_options=wrapped.step_options,
        variables=wrapped.variables,
        prefixes=wrapped.prefixes,
    )


def unwrap(words: Sequence[str]) -> WrappedWords:
    """The words without assignments, srun or mpirun with their options, and env, nohup, timeout, singularity and the
    like."""
    rest, prefixes, step = list(words), list[str](), ""
    variables, step_options = dict[str, str](), dict[str, str]()
    while rest:
        name = _base(rest[0])
        if (match := ASSIGNMENT.match(rest[0])) is not None:
            variables[match[1]] = match[2]
            rest = rest[1:]
        elif name in STEPS:
            step = step or name
            step_options, rest = read_options(rest[1:], "srun" if name == "srun" else "mpirun")
        elif name in PREFIXES:
            first = 2 if name in ("singularity", "apptainer", "docker", "podman") else 1
            at = next((n for n in range(first, len(rest)) if _is_program(rest[n])), None)
            if at is None:
                break
            prefixes += rest[:at]
            rest = rest[at:]
        else:
            break
    return WrappedWords(
        words=tuple(rest), step=step, step_options=step_options, variables=variables, prefixes=tuple(prefixes)
    )


def read_options(words: Sequence[str], launcher: str) -> tuple[dict[str, str], list[str]]:
    """The options before the first word that is not an option, and the rest from there."""
    options: dict[str, str] = {}
    at = 0
    while at < len(words) and (words[at].startswith("-") and len(words[at]) > 1):
        word = words[at]
        at += 1
        name, equals, value = word.lstrip("-").partition("=")
        if launcher == "srun" and not word.startswith("--"):
            name, equals, value = SLURM_SHORT.get(word[1], word[1]), word[2:], word[2:].removeprefix("=")
            known = word[1] in (*SLURM_FLAGS, "K", "l", "u")
        else:
            name = torchrun_options.SHORT.get(word, name.replace("_", "-"))
            name = "ntasks" if launcher == "mpirun" and name in ("n", "c") else _NAMES.get(name, name)
            known = (launcher, name) in FLAGS
        if not equals and not known and at < len(words):
            taken = _MPI_VALUES.get(name, 1) if launcher == "mpirun" else 1
            value = " ".join(words[at : at + taken])
            at += taken
        options[name] = value
    return options, list(words[at:])


def _base(word: str) -> str:
    return word.rsplit("/", 1)[-1]


def _name_launcher(words: Sequence[str]) -> str:
    name = _base(words[0]) if words else ""
    if PYTHON.match(name) and words[1:2] == ["-m"] and len(words) > 2:
        return RUN_MODULES.get(words[2], "python")
    if name == "accelerate":
        return name if words[1:2] == ["launch"] else ""
    return name if name in ("torchrun", "deepspeed") else "python" if PYTHON.match(name) or name.endswith(".py") else ""


def _is_program(word: str) -> bool:
    name = _base(word)
    return (
        name in (*STEPS, *SHELLS, "torchrun", "accelerate", "deepspeed")
        or name in PREFIXES
        or PYTHON.match(name) is not None
        or (name.endswith((".py", ".sh")) and not word.startswith("-"))
        or ASSIGNMENT.match(word) is not None
    )
