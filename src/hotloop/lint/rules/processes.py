"""The static checks of what a rank does among others, and when it is warned."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.formats.script import FUNCTIONS, LintedScript, constant, keyword

RANK = re.compile(
    r"(?i)rank|world|main|master|primary|is_first|zero|leader|chief|root|writer|logger|log_dir|gpu|device|shard|worker|writes?\b"
)
APART = re.compile(r"(?i)rank|local|getpid|hostname|uuid|buffer|BytesIO")
"""In a path that differs from process to process."""
ONE_RANK = re.compile(r"(?i)rank|master|primary|once|zero")
STARTED = re.compile(r"init_process_group|init_distributed|DistributedDataParallel|dist_init")
MAY_SAVE_APART = re.compile(
    r"(?i)FullyShardedDataParallel|FSDP|fully_shard|deepspeed|tensor_parallel|pipeline_parallel|megatron"
)


@lint_rule("save-on-every-rank", "all ranks write the same checkpoint file", reads="python")
def save_on_every_rank(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a `torch.save` in the loop of a distributed training that no test of the rank guards, to a path that does
    not name the rank.

    ## Why it costs
    All ranks write the same file at the same time. On a shared file system the writes mix, and what is loaded later may
    be broken; in any case every rank waits for a write that one would do.

    ## How to tell
    The file starts a process group, `torch.save` runs in or below a training's loop, and neither a test around it nor
    its path mentions a rank or a main process.

    ## What to do
    `if torch.distributed.get_rank() == 0:` around the save, and a barrier behind it if other ranks read the file.

    ## When it is wrong
    If the caller in another file guards it, or the path differs by rank through the working directory.
    """
    if not any(STARTED.search(name) for _, name in script.calls) or MAY_SAVE_APART.search(script.text):
        return
    for call in script.calls_of("torch.save"):
        if len(call.args) < 2 or script.mentions(call.args[1], APART) or not _is_reached_unguarded(script, call, 0):
            continue
        if not _is_in_training(script, call):
            continue
        yield LintFinding(
            severity=Severity.MEDIUM,
            line=call.lineno,
            message=f"every rank writes {script.source(call.args[1])} at the same time: no test of the rank guards it",
            advice="save on one rank: if torch.distributed.get_rank() == 0",
        )


def _is_reached_unguarded(script: LintedScript, node: ast.AST, depth: int) -> bool:
    """Whether some way to the node, through callers of this file, passes no test that may be one of the rank."""
    scope = script.scope(node)
    if any(isinstance(test, ast.expr) and script.mentions(test, RANK) for test in script.conditions(node, scope)):
        return False
    if not isinstance(scope, FUNCTIONS):
        return True
    if ONE_RANK.search(" ".join([scope.name, *(script.name(one) for one in scope.decorator_list)])):
        return False
    for one in ast.walk(scope):  # if rank != 0: return
        if isinstance(one, ast.If) and one.lineno < getattr(node, "lineno", 0):
            leaves = any(isinstance(inner, (ast.Return, ast.Continue, ast.Raise)) for inner in one.body)
            if leaves and script.mentions(one.test, RANK):
                return False
    if any(script.within(step.container, scope) or step.container is scope for step in script.training):
        return True
    return depth < 3 and any(_is_reached_unguarded(script, call, depth + 1) for call in script.callers(scope))


def _is_in_training(script: LintedScript, call: ast.Call) -> bool:
    """Whether the save is in a function that trains, or is called from one."""
    scopes = {id(step.scope) for step in script.training} | {id(script.scope(step.loop)) for step in script.training}
    scopes |= {
        id(script.scope(one))
        for step in script.training
        if isinstance(step.scope, FUNCTIONS)
        for one in script.callers(step.scope)
    }
    scope = script.scope(call)
    callers = script.callers(scope) if isinstance(scope, FUNCTIONS) else []
    return id(scope) in scopes or any(id(script.scope(one)) in scopes for one in callers)


@lint_rule("unused-parameter-search", "DDP looks for unused parameters in every step", reads="python")
def unused_parameter_search(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a model wrapped by `DistributedDataParallel(..., find_unused_parameters=True)`.

    ## Why it costs
    DDP then walks the whole graph after each forward. If every parameter gets a gradient, the walk is for nothing.

    ## How to tell
    The argument is the literal `True`. Whether parameters are unused cannot be seen here, so this is never above `low`.

    ## What to do
    Leave it out and train a step: DDP says if a parameter got no gradient. The rule `unused-parameter-scan` of
    `hotloop run` measures the cost.

    ## When it is wrong
    If some parameters really get no gradient in some steps.
    """
    for call in script.calls_of(".DistributedDataParallel", "DistributedDataParallel", "DDP"):
        if constant(keyword(call, "find_unused_parameters")) is True:
            yield LintFinding(
                severity=Severity.LOW,
                line=call.lineno,
                message="find_unused_parameters=True walks the graph in every step",
                advice="leave it out unless DDP then complains of parameters without gradients",
            )


NEVER = ("signal.SIGKILL", "signal.SIGSTOP", "signal.Signals.SIGKILL", "signal.Signals.SIGSTOP")


@lint_rule("uncatchable-signal", "a handler is set for a signal that cannot be caught", reads="python")
def uncatchable_signal(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for `signal.signal` with SIGKILL or SIGSTOP.

    ## Why it costs
    The kernel never delivers them: the call itself raises OSError, and the save that it promises never happens.

    ## How to tell
    The first argument names one of the two signals, and no `try` is around the call.

    ## What to do
    Handle SIGTERM, which schedulers send first, or the signal that you ask your scheduler for.

    ## When it is wrong
    It is not, on Linux and macOS.
    """
    for call in script.calls_of("signal.signal"):
        name = script.name(call.args[0]) if call.args else ""
        if name in NEVER and not any(isinstance(one, ast.Try) for one in script.parents(call)):
            yield LintFinding(
                severity=Severity.HIGH,
                line=call.lineno,
                message=f"{name} cannot be caught: this call raises OSError",
                advice="handle signal.SIGTERM, which is sent first",
            )


HANDLE_THEMSELVES = re.compile(r"(?i)lightning|submitit|composer|determined|ignite|hotloop|ray\b")
SAVES = ("torch.save", ".save_pretrained", ".save_checkpoint", ".save_state", "torch.distributed.checkpoint.save")


@lint_rule("unhandled-signal", "the job warns its training by a signal that nothing handles", reads="python")
def unhandled_signal(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a training script that saves checkpoints and sets no signal handler, where a batch script or manifest of
    the same run starts it by its name and says that it will be warned.

    ## Why it costs
    A signal without a handler ends Python at once. The warning, which is there so that a last save can run, costs steps
    instead: everything since the last checkpoint, and the seconds that were left.

    ## How to tell
    `medium` where `--signal` without `B:` meets a script under srun; `low` where a pod runs on spot nodes or has a
    grace period above 30 s. Silent as soon as any Python file of the run mentions a signal, or the script uses a
    framework that sets handlers.

    ## What to do
    `signal.signal(signal.SIGUSR1, ...)` that sets a flag, and a save after the step that sees it, as hotloop's Trainer
    does. Or remove `--signal`.

    ## When it is wrong
    If a package that is not among these files sets the handler, or the script saves often enough.
    """
    start = script.start
    if start is None or HANDLE_THEMSELVES.search(script.text) or not script.calls_of(*SAVES):
        return
    loops = [one.loop.lineno for one in script.training]
    loops += [
        call.lineno for call, name in script.calls if "train" in name.split(".")[-1] and script.loops_around(call)
    ]
    if loops:
        yield LintFinding(
            severity=Severity.MEDIUM if start.is_asked else Severity.LOW,
            line=min(loops),
            message=f"{start.signal} ends this training {start.when} ({start.file}:{start.line}): no file handles it",
            advice=f"signal.signal(signal.SIG{start.signal.removeprefix('SIG')}, ...), then save and end",
        )
