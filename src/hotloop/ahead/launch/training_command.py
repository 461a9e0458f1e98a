"""The user's command -> the command for each node: torchrun, without the settings that the launcher itself decides.

    hotloop run --strategy fast.toml -- torchrun --nproc-per-node 8 train.py --lr 1e-3
    python train.py            python -m package.train            OMP_NUM_THREADS=4 torchrun --max-restarts 3 train.py

The five options of the layout (nodes, processes per node, rank of the node, address, port) are not written as options:
torchrun reads them from PET_ variables, which Kubeflow itself sets and the other targets set alike.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from hotloop.core.errors import UsageError, suggest_known
from hotloop.core.torchrun_options import FLAGS, KEPT, LAYOUT, SHORT

LAYOUT_VARIABLES = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
FOREIGN = ("accelerate", "deepspeed", "mpirun", "mpiexec", "srun", "colossalai", "horovodrun", "ray")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCommand:
    """``words`` run on every node. ``processes_per_node``: from the user's torchrun; None if not given."""

    words: tuple[str, ...]
    processes_per_node: int | None = None


def read_command(words: Sequence[str], strategy: str | None = None) -> TrainingCommand:
    """The command of a node. ``strategy``: the file that `hotloop run` should apply. Raises UsageError."""
    for word in words:
        if "\0" in word or not _is_text(word):
            raise UsageError(f"the command's word {word!r} is not UTF-8 text, which a manifest requires; rename it")
    variables, words = _split_variables(words)
    prefix, rest = _split_hotloop(words)
    if prefix:
        more, rest = _split_variables(rest)
        variables = (*variables, *more)
    if strategy is not None:
        if prefix:
            raise UsageError("--strategy and `hotloop run` in the command: give the strategy to only one of them")
        prefix = ("hotloop", "run", "--strategy", strategy, "--")
    if not rest:
        raise UsageError("no training command; end with: -- python train.py")
    command = _read_rest(list(rest))
    environment = ("env", *variables) if variables else ()
    return TrainingCommand(words=(*environment, *prefix, *command.words), processes_per_node=command.processes_per_node)


def _split_variables(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """NAME=value before the command, as in a shell, and the rest. Raises UsageError for the launcher's own."""
    start = 1 if words and os.path.basename(words[0]) == "env" and _ASSIGNMENT.match("".join(words[1:2])) else 0
    at = start
    while at < len(words) and _ASSIGNMENT.match(words[at]):
        if words[at].partition("=")[0] in LAYOUT_VARIABLES:
            raise UsageError(f"{words[at]}: the launcher itself sets this variable; leave it out")
        at += 1
    return tuple(words[start:at]), tuple(words[at:])


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _split_hotloop(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if not words or os.path.basename(words[0]) != "hotloop":
        return (), tuple(words)
    if words[1:2] != ("run",) and words[1:2] != ["run"]:
        raise UsageError(
            f"hotloop {' '.join(words[1:2])} cannot be launched; give `hotloop run -- COMMAND` or only COMMAND"
        )
    if "--" not in words:
        raise UsageError("hotloop run needs -- before the training command here: hotloop run -- python train.py")
    cut = list(words).index("--") + 1
    if any(word.partition("=")[0] == "--name" for word in words[:cut]):
        raise UsageError("hotloop run --name: every node would use the same name; remove --name from the command")
    return tuple(words[:cut]), tuple(words[cut:])


def _read_rest(words: list[str]) -> TrainingCommand:
    program = os.path.basename(words[0])
    if program in FOREIGN:
        raise UsageError(f"{program} starts ranks, which is the launcher's job: give only `python train.py`")
    if program == "torchrun":
        return _read_torchrun(words[:1], words[1:])
    if re.fullmatch(r"python[\d.]*", program):
        if words[1:3] in (["-m", "torch.distributed.run"], ["-m", "torch.distributed.launch"]):
            return _read_torchrun([words[0], "-m", "torch.distributed.run"], words[3:])
        if len(words) == 1:
            raise UsageError(f"{words[0]} without a script: give {words[0]} train.py")
        start = [words[0], "-m", "torch.distributed.run"]
        plain = not words[1].startswith("-") or words[1] == "-m"
        return TrainingCommand(words=(*start, *words[1:]) if plain else (*start, "--no-python", *words))
    if program.endswith(".py"):
        return TrainingCommand(words=("torchrun", *words))
    return TrainingCommand(words=("torchrun", "--no-python", *words))


def _read_torchrun(start: list[str], words: list[str]) -> TrainingCommand:
    """The words without the layout's options, which end at the first word that is not an option."""
    kept, count, at = list(start), None, 0
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        name, has_value, value = SHORT.get(word, word.lstrip("-").replace("_", "-")).partition("=")
        at += 1
        if name in FLAGS or name == "standalone":
            kept += [word] if name in FLAGS else []
            continue
        if name not in LAYOUT | KEPT:
            raise UsageError(f"torchrun {word}: unknown option{suggest_known(name, sorted({*KEPT, *FLAGS, *LAYOUT}))}")
        if not has_value:
            if at == len(words):
                raise UsageError(f"torchrun {word} needs a value")
            value = words[at]
            at += 1
        if name == "nproc-per-node" and value.isdecimal():
            count = int(value)
        if name in KEPT:
            kept += [word] if has_value else [word, value]
    if at == len(words):
        raise UsageError("torchrun without a script: give torchrun train.py")
    return TrainingCommand(words=(*kept, *words[at:]), processes_per_node=count)
