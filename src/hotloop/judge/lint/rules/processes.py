"""Checks of what a rank does among others, and of its handling of warnings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.judge.lint.formats.script import LintedScript
from hotloop.judge.lint.python_code import FUNCTIONS, constant, keyword
from hotloop.judge.lint.python_flow import LoopCall

RANK = re.compile(
    r"(?i)rank|world|main|master|primary|is_first|zero|leader|chief|root|writer|logger|log_dir|gpu|device|shard|worker|writes?\b"
)
APART = re.compile(r"(?i)rank|local|getpid|hostname|uuid|buffer|BytesIO")
"""Part of a path that differs between processes."""
ONE_RANK = re.compile(r"(?i)rank|master|primary|once|zero")
STARTED = re.compile(r"init_process_group|init_distributed|DistributedDataParallel|dist_init")
MAY_SAVE_APART = re.compile(
    r"(?i)FullyShardedDataParallel|FSDP|fully_shard|deepspeed|tensor_parallel|pipeline_parallel|megatron"
)
ONCE = {
    "torch.save": "writes {0} on every rank at the same time: no rank check guards it",
    "wandb.init": "starts a run on every rank: N dashboards show the same training run",
    "huggingface_hub.snapshot_download": "downloads the same files on every rank",
    "urllib.request.urlretrieve": "downloads the same file on every rank, to the same path",
    "torch.hub.download_url_to_file": "downloads the same file on every rank, to the same path",
    "download=True": "downloads the dataset on every rank, into the same folder",
}
"""Calls that one rank should make, and their effect on every rank."""


@lint_rule("save-on-every-rank", "all ranks write or download the same file", reads="python")
def save_on_every_rank(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks in distributed training for `torch.save`, downloads and `wandb.init` that no rank check guards and whose path
    does not contain the rank.

    ## Why it costs
    All ranks write the same file at the same time. On a shared file system, the writes mix, and the file may turn out
    to be broken when it is loaded. In any case, every rank spends time on a write that one rank could do.

    ## How to recognize it
    The file starts a process group, and neither a condition around the call nor its path mentions a rank or a main
    process.

    ## What to do
    Use `if torch.distributed.get_rank() == 0:` around the call, and a barrier after it if other ranks read the file.

    ## When it is wrong
    Ignore the finding if a caller in another file guards the call, or if each rank has its own working directory.
    """
    started = STARTED.search(script.text) and any(STARTED.search(name) for _, name in script.calls)
    for call, name in script.calls if started else ():
        key = "download=True" if constant(keyword(call, "download")) is True else name
        place = call.args[1] if len(call.args) > 1 else None
        is_save = key == "torch.save"
        skipped = is_save and (place is None or MAY_SAVE_APART.search(script.text) or not _is_in_training(script, call))
        paths = [place] if key != "download=True" else [*call.args, *(one.value for one in call.keywords)]
        if key in ONCE and not skipped and not any(script.mentions(one, APART) for one in paths if one is not None):
            is_once = is_save and call not in {one.call for loop, _ in script.epochs for one in script.events(loop)}
            yield from script.report(
                _is_reached_unguarded(script, call, 0) and call,
                Severity.LOW if is_once else Severity.MEDIUM,
                f"{name} {ONCE[key].format(script.source(place) if place else '')}",
                "do it on one rank: if torch.distributed.get_rank() == 0, then a barrier",
                is_sure=is_save,
            )


def _is_reached_unguarded(script: LintedScript, node: ast.AST, depth: int) -> bool:
    """Whether some path to the node, through callers in this file, has no condition that may check the rank."""
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
    """Whether the save runs in a loop that trains, or in the function around it."""
    scopes = {script.scope(loop) for loop, _ in script.epochs} | {step.scope for step in script.training}
    made = {event.call for loop, _ in script.epochs for event in script.events(loop)}
    return call in made or script.scope(call) in scopes


COLLECTIVES = re.compile(
    r"(^|\.)(barrier|all_reduce|all_gather\w*|reduce_scatter\w*|broadcast\w*|gather_object|scatter\w*|monitored_barrier|"
    r"wait_for_everyone|synchronize_between_processes|reduce_dict|reduce_tensor)$"
)
ZERO = re.compile(r"(?i)rank|is_main|is_master|main_process|master")


@lint_rule("uneven-collective", "only some ranks reach a collective", reads="python")
def uneven_collective(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a collective, or a forward of a model in DDP, under a rank check, including in functions that are called
    there. Also looks for a `continue` before `backward()` that depends on the batch.

    ## Why it costs
    The ranks that reach the collective wait for those that skip it: the job hangs until NCCL's timeout, and then it
    fails.

    ## How to recognize it
    The rule follows the calls in the branch into functions. No other branch of this or an enclosing function calls a
    collective.

    ## What to do
    Call collectives on all ranks, and check the rank only around code that prints and writes.

    ## When it is wrong
    Ignore the finding if the collective's group contains only these ranks.
    """
    if not STARTED.search(script.text):
        return
    for node in script.of[ast.If]:
        shown = script.source(node.test)
        if not IS_RANK.search(shown) or re.search(r"world|(!=|>) *-1|>= *0", shown):  # or whether there are ranks
            continue
        mine = _collectives(script, node, node.body)
        leaves = any(isinstance(one, (ast.Return, ast.Continue)) for one in node.body)
        around = {script.scope(node), *script.parents(node)}
        paired = mine and (
            _collectives(script, node, node.orelse)
            or any(
                one is not node and script.scope(one) in around and _collectives(script, one, [*one.body, *one.orelse])
                for one in script.of[ast.If]
                if script.mentions(one.test, ZERO)
            )
        )
        yield from script.report(
            bool(mine) and not paired and not leaves and keyword(mine[0].call, "group") is None and mine[0].site,
            Severity.HIGH,
            f"{mine[0].name if mine else ''} runs only if {shown}: the other ranks never reach this "
            "collective, and the job "
            "hangs until the timeout",
            "call it on all ranks, outside the condition",
        )
    for step in script.training if script.calls_of(".DistributedDataParallel", ".DDP") else ():
        for leave in (one for one in ast.walk(step.container) if isinstance(one, ast.Continue)):
            test = next((one.test for one in script.parents(leave) if isinstance(one, ast.If)), None)
            early = leave.lineno < script.line(step.backwards[0]) and script.loops_around(leave)[:1] == [step.loop]
            yield from script.report(
                test is not None
                and early
                and script.mentions(test, UNEVEN)
                and not script.mentions(test, AGREED)
                and leave,
                Severity.HIGH,
                f"a rank that continues if {script.source(test) if test else ''} skips backward(): "
                "the others wait in its all-reduce",
                "decide on all ranks together (all_reduce of the flag), or use a zero loss",
                is_sure=False,
            )


IS_RANK = re.compile(r"(?i)(rank\w*(\(\))?\s*(==|!=|in)|^not \w*rank|is_(main|master)|main_process)")
AGREED = re.compile(r"(?i)reduce|gather|broadcast")
UNEVEN = re.compile(r"isnan|isfinite|isinf|^loss$|numel")


def _collectives(script: LintedScript, branch: ast.If, body: list[ast.stmt]) -> list[LoopCall]:
    """The collectives that statements call, directly or in functions."""
    inside = {part for one in body for part in ast.walk(one) if isinstance(part, ast.Call)}
    events = script.events(script.scope(branch)) if inside else ()
    found = [one for one in events if one.site in inside and COLLECTIVES.search(one.name) and _is_distributed(one.name)]
    others = {
        one: [test for test in one.tests if isinstance(test, ast.expr) and test is not branch.test] for one in found
    }
    return [one for one in found if not any(script.mentions(test, ZERO) for test in others[one])]


def _is_distributed(name: str) -> bool:
    return "dist" in name or name.endswith(("barrier", "wait_for_everyone", "all_reduce", "all_gather"))


@lint_rule("bypassed-ddp", "a model in DDP is wrapped in the wrong order, or bypassed", reads="python")
def bypassed_ddp(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a training forward or another method that computes the loss through `model.module` or the unwrapped
    model, a model that is wrapped before it is
    moved to its device, ranks that all use GPU 0, and the gloo backend for models on GPUs.

    ## Why it costs
    DDP's hooks run only through the wrapper: without it, gradients are not averaged, and each rank trains its own
    model. Wrapping a model that is still on the CPU raises an error with `device_ids`. N ranks on one GPU share its
    memory and its time.

    ## How to recognize it
    The rule traces the object whose forward runs in the loop to the wrapper and to the model inside it. The calls that
    choose a device are `set_device`, `device_ids` and any call that names a rank.

    ## What to do
    Use `torch.cuda.set_device(local_rank)`, move the model, wrap it, and call the wrapper.

    ## When it is wrong
    Ignore the finding if the code averages the gradients itself.
    """
    wraps = script.calls_of(".DistributedDataParallel", ".DDP")
    if not wraps:
        return
    bare = {origin for call in wraps if call.args for origin in script.origins(call.args[0])} - set(wraps)
    by_hand = script.has(r"no_sync|average_gradients|all_reduce\([^\n]{0,40}grad")
    armed = {
        one.container for one in script.training for each in one.events if script.role(each.call.func) == "wrapped"
    }
    for step, event in () if by_hand else [(one, event) for one in script.training for event in one.events]:
        made, model = script.origins(event.call.func), getattr(event.call.func, "value", event.call)
        through = event.name.endswith((".module", ".module.forward")) and script.role(model) == "wrapped"
        if ".module." in event.name and not through and step.container not in armed:
            lost = {node for one in step.backwards for node in script.slice(script.loss(one.call))}
            through = event.call in lost and script.role(getattr(model, "value", model)) == "wrapped"
        hidden = bool(made and event.call.args) and all(one in bare and isinstance(one, ast.Call) for one in made)
        yield from script.report(
            (through or hidden) and not script.without_gradients(event.call) and event,
            Severity.HIGH,
            f"{event.name}(...) bypasses DistributedDataParallel: gradients are not averaged, each "
            "rank trains its own model",
            "call the wrapped model",
        )
    moves = script.calls_of(".cuda", ".to")
    for call in (call for call in wraps if call.args and keyword(call, "device_ids") is not None):
        inner = script.origins(call.args[0], inside=True)
        here = [move for move in moves if script.scope(move) is script.scope(call)]
        moved = (move for move in here if not set(inner).isdisjoint(script.origins(_receiver(move), inside=True)))
        first = next(moved, call)
        yield from script.report(
            first.lineno > (call.end_lineno or 0) and call,
            Severity.HIGH,
            "DDP wraps the model before it is moved to the GPU: device_ids with parameters on the CPU raises",
            "move the model, then wrap it",
        )
    plain = [move for move in moves if _moves_to_first(script, move)]
    on_gpu = any(isinstance(keyword(call, "device_ids"), ast.List) for call in wraps)
    for call in script.calls_of("torch.distributed.init_process_group"):
        yield from script.report(
            bool(plain) and script.has(STARTS) and not script.has(CHOOSES) and plain[0],
            Severity.HIGH,
            "nothing chooses a GPU by local rank (set_device): every rank uses cuda:0",
            "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) after init_process_group",
        )
        yield from script.report(
            on_gpu
            and not script.conditions(call, script.scope(call))
            and constant(call.args[0] if call.args else keyword(call, "backend")) == "gloo"
            and call,
            Severity.MEDIUM,
            "gloo averages GPU gradients through the host's memory: several times slower than nccl",
            "init_process_group('nccl')",
        )


CHOOSES = r"set_device|device_ids\s*=\s*\[|(?i:cuda:\{|CUDA_VISIBLE_DEVICES)|local_rank|device_id="


STARTS = r"\bspawn\(|\bProcess\(|LOCAL_RANK|LOCAL_WORLD|torchrun|distributed\.launch"
"""Signs of several processes that see all GPUs of a machine; a batch system may show each process only its own."""


def _receiver(call: ast.Call) -> ast.AST:
    return getattr(call.func, "value", call)


def _moves_to_first(script: LintedScript, move: ast.Call) -> bool:
    """Whether a call moves to the default GPU: number 0, unless the code chooses another."""
    bare = not move.args and script.name(move.func).endswith("cuda")
    return bare or constant(move.args[0] if move.args else None) in ("cuda", "cuda:0")


@lint_rule("unreduced-metric", "a metric of one rank's share is used as the metric of all ranks", reads="python")
def unreduced_metric(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for validation with a loader that has a `DistributedSampler`, in a file that never reduces or gathers
    anything.

    ## Why it costs
    The score that rank 0 prints, and that chooses the best model, covers only one share of the data.

    ## How to recognize it
    A loop under `no_grad` uses a loader with the sampler, and the file calls no collective. The severity is low if the
    file does not keep a best model or stop early.

    ## What to do
    Use `all_reduce` the counts, then divide.

    ## When it is wrong
    Ignore the finding if a metrics library reduces the metric.
    """
    reduced = not script.calls_of(".DistributedSampler") or script.has(
        r"all_reduce|all_gather|reduce\(|gather|torchmetrics|MetricLogger|reduce_|accelerat|lightning"
    )
    stops = [
        one
        for loop, _ in script.epochs
        for one in ast.walk(loop)
        if isinstance(one, ast.If) and isinstance(one.body[-1], ast.Break) and script.mentions(one.test, PATIENCE)
    ]
    chooses = stops or script.has(r"(?i)\bbest|early_?stop|Plateau")
    for loop in script.of[ast.For] if not reduced else ():
        source = script.loop_source(loop) if script.without_gradients(loop) else None
        given = [keyword(one, "sampler") for one in script.origins(source or loop) if isinstance(one, ast.Call)]
        samplers = [script.name(getattr(one, "func", one)) for part in given if part for one in script.origins(part)]
        yield from script.report(
            any(one.endswith("DistributedSampler") for one in samplers)
            and re.search(r"(?i)acc|correct|loss|metric|score|right|argmax|error|mae|mse|\+=", script.text_of(loop))
            and loop,
            Severity.MEDIUM if chooses else Severity.LOW,
            "the metric covers only this rank's share of the validation data: nothing reduces it over ranks",
            "torch.distributed.all_reduce the sums, then divide",
        )
        yield from script.report(
            any(one.endswith("DistributedSampler") for one in samplers)
            and not script.has("broadcast")
            and bool(stops)
            and stops[0],
            Severity.HIGH,
            "each rank stops early by the metric of its own share: one leaves the loop, and the others hang in their "
            "next all-reduce",
            "decide by a metric that is reduced over ranks, or broadcast the decision",
        )


PATIENCE = re.compile(r"(?i)patience|early_?stop")


@lint_rule("unused-parameter-search", "DDP looks for unused parameters in every step", reads="python")
def unused_parameter_search(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a model wrapped by `DistributedDataParallel(..., find_unused_parameters=True)`.

    ## Why it costs
    DDP then walks the entire graph after each forward. If every parameter gets a gradient, the walk is useless.

    ## How to recognize it
    The argument is the literal `True`. The walk takes a few percent of a step.

    ## What to do
    Leave the argument out and train one step: DDP reports an error if a parameter got no gradient. The rule
    `unused-parameter-scan` of `hotloop run` measures the cost.

    ## When it is wrong
    Ignore the finding if some parameters do not get a gradient in some steps.
    """
    for call in script.calls_of(".DistributedDataParallel", ".DDP", ".DDPStrategy", ".DistributedDataParallelKwargs"):
        if constant(keyword(call, "find_unused_parameters")) is True:
            yield LintFinding(
                severity=Severity.LOW,
                line=call.lineno,
                message="find_unused_parameters=True walks the graph in every step",
                advice="leave it out unless DDP then reports parameters without gradients",
            )


NEVER = ("signal.SIGKILL", "signal.SIGSTOP", "signal.Signals.SIGKILL", "signal.Signals.SIGSTOP")


@lint_rule("uncatchable-signal", "a handler is set for a signal that cannot be caught", reads="python")
def uncatchable_signal(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for `signal.signal` with SIGKILL or SIGSTOP.

    ## Why it costs
    The kernel never delivers these signals to a handler: the call itself raises OSError, and the intended save never
    happens.

    ## How to recognize it
    The first argument names one of the two signals, and no `try` is around the call.

    ## What to do
    Handle SIGTERM, which schedulers send first, or the signal that you ask your scheduler for.

    ## When it is wrong
    On Linux and macOS, the finding is never wrong.
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


@lint_rule("unhandled-signal", "the job warns the training process with a signal that nothing handles", reads="python")
def unhandled_signal(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a training script that saves checkpoints but sets no signal handler, if a batch script or manifest for the
    same run starts the script by name and requests a warning signal.

    ## Why it costs
    A signal without a handler ends Python immediately. The warning is meant to leave time for a last save. Without a
    handler, you lose all work since the last checkpoint and the remaining seconds.

    ## How to recognize it
    The severity is `medium` if `--signal` without `B:` applies to a script under srun, and `low` if a pod runs on spot
    nodes or has a grace period above 30 s. Nothing is reported if any Python file of the run mentions a signal, or if
    the script uses a framework that sets handlers.

    ## What to do
    Set a flag in `signal.signal(signal.SIGUSR1, ...)`, and save after the step that sees it, as hotloop's Trainer does.
    Or remove `--signal`.

    ## When it is wrong
    Ignore the finding if a package that is not among these files sets the handler, or the script saves often enough.
    """
    start = script.start
    if start is None or HANDLE_THEMSELVES.search(script.text) or not script.calls_of(*SAVES):
        return
    loops = [one.loop.lineno for one in script.training if script.is_own(one.loop)]
    loops += [
        call.lineno for call, name in script.calls if "train" in name.split(".")[-1] and script.loops_around(call)
    ]
    if loops:
        yield LintFinding(
            severity=Severity.MEDIUM if start.is_asked else Severity.LOW,
            line=min(loops),
            message=f"{start.signal} ends training {start.when} ({start.file}:{start.line}): no file handles it",
            advice=f"signal.signal(signal.SIG{start.signal.removeprefix('SIG')}, ...), then save and end",
        )
