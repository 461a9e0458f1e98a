"""Options -> an armed process: every site patched once, and a memory that the events go to."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import time
from _thread import get_ident
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

from hotloop.agent.attach.imports import ImportWatch
from hotloop.agent.attach.sites import COPY_SITES, SITES, Site, Wrap, install
from hotloop.agent.observe import hooks
from hotloop.agent.observe.agent import Agent
from hotloop.agent.observe.guard import GUARD, guarded
from hotloop.agent.observe.ring import Ring
from hotloop.core.events import COMPILE_IN, COMPILE_OUT
from hotloop.core.recording import FIELD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hotloop.agent.observe.local import Session

_agent: Agent | None = None
LOCAL_OPTIONS = ("strategy", "trial", "numbers", "trace", "nvtx", "deep")
"""Options that need steps inside the training."""


def current_agent() -> Agent | None:
    """The agent of this process, when it is armed."""
    return _agent


def subscribers_of(agent: Agent) -> dict[str, Wrap]:
    """The wrappers of observe, by site id (collectives and copies by their prefix)."""
    collective = hooks.wrap_phase(agent, FIELD["communication_ns"])
    return {
        "loader-init": hooks.wrap_init(agent.loader_built),
        "loader-iter": hooks.wrap_loader_iter(agent),
        "loader-next": hooks.wrap_loader_next(agent),
        "fetch": hooks.wrap_fetch(agent),
        "module-call": hooks.wrap_module_call(agent),
        "run-backward": hooks.wrap_run_backward(agent),
        "optimizer-init": hooks.wrap_init(agent.optimizer_built),
        "scaler-init": hooks.wrap_init(agent.scaler_built),
        "anomaly": hooks.wrap_traced_init(agent.anomaly_set),
        "scaler-step": hooks.wrap_scaler_step(agent),
        "scaler-unscale": hooks.wrap_scaler_work(agent),
        "scaler-update": hooks.wrap_scaler_work(agent),
        "save": hooks.wrap_phase(agent, FIELD["checkpoint_ns"]),
        "checkpoint": hooks.wrap_activation_checkpoint(agent),
        "ddp-init": hooks.wrap_init(agent.ddp_built),
        "work-wait": collective,
        "collective": collective,
        "compile": hooks.wrap_compile(agent),
        "graph-call": hooks.wrap_graph_call(agent),
        "copy": hooks.wrap_copy(agent, FIELD["h2d_ns"]),
    }


def arm_agent(options: dict[str, Any]) -> Agent | None:
    """Patch torch in this process; None where nobody reads what it would note. Arming twice returns the same agent."""
    global _agent
    if _agent is not None:
        return _agent
    ring = _open_ring(options)
    if ring is None:
        return None
    agent = _agent = Agent(options, ring)
    agent.fulfill = _fulfill
    watch = ImportWatch()
    subscribers = subscribers_of(agent)
    session = _local_session(agent, options)
    changes = _changes(options, session) if session is not None else {}
    notes = _notes(options, session) if session is not None else {}
    for site in (*SITES, *(site for site in changes if site not in (*SITES, *COPY_SITES))):
        timing = subscribers.get(site.id) or subscribers.get(site.id.partition("-")[0])
        # What changes a call goes outside what times it.
        wraps = [wrap for wrap in (timing, notes.get(site.id), changes.get(site)) if wrap is not None]
        if wraps:
            watch.after_import(site.module, lambda site=site, wraps=wraps: _install(agent, site, *wraps))  # type: ignore[misc]
    _when_cuda_starts(lambda: _cuda_started(agent, subscribers["copy"], changes))
    _time_devices(agent)
    hooks.hook_optimizers(agent)
    watch.after_import("torch._dynamo.eval_frame", _hide_from_dynamo)
    watch.after_import("torch._dynamo.callback", lambda: _watch_compilation(agent))
    gc.callbacks.append(hooks.gc_callback(agent))
    atexit.register(agent.end)
    os.register_at_fork(after_in_child=agent.reset_after_fork)
    agent.tell_access()  # what passes before the first step is sampled too
    return agent


def _fulfill(agent: Agent, word: int) -> None:
    from hotloop.agent.observe.requests import fulfill

    fulfill(agent, word)


def _open_ring(options: dict[str, Any]) -> Ring | None:
    """A memory that somebody reads: ``hotloop run``, or, where that is not on this machine, a process of its own."""
    anchor_ns = time.perf_counter_ns()
    if options.get("address"):
        ring = Ring(options["address"], options["token"], anchor_ns)
        if ring.hand_over():
            return ring
        ring.drop()
    if not os.path.isdir(os.path.join(options["run"], "processes")):
        return None
    from hotloop.agent.replay.collector import start_program

    ring = Ring(*start_program(Path(options["run"])), anchor_ns)
    if ring.hand_over():
        return ring
    ring.drop()
    return None


def _local_session(agent: Agent, options: dict[str, Any]) -> Session | None:
    """Steps inside the training, where something was asked for that needs them."""
    if not any(options.get(name) for name in LOCAL_OPTIONS):
        return None
    import torch

    from hotloop.agent.observe.local import Session

    if options.get("nvtx") and torch.cuda.is_available():
        from hotloop.agent.observe.nvtx import NvtxRecorder

        return Session(agent, lambda clock: NvtxRecorder(torch.cuda.nvtx, clock))
    session = Session(agent)
    if options.get("deep"):
        from hotloop.agent.observe.deep import DeepWindow

        session.subscribe(DeepWindow())
    if options.get("trace"):
        from hotloop.agent.observe.tracing import make_tracing

        session.subscribe(make_tracing(options))
    return session


def _changes(options: dict[str, Any], session: Session) -> dict[Site, Wrap]:
    if not options.get("strategy") and not options.get("ablation"):
        return {}
    try:
        from hotloop.agent.attach.applying import apply_to_process

        return apply_to_process(options, session)
    except Exception as error:
        GUARD.record("applying a strategy", error)
        return {}


def _notes(options: dict[str, Any], session: Session) -> dict[str, Wrap]:
    """The wrappers of a trial, a drill's rehearsal or ``--watch-numbers``, added to the recording's, by site id."""
    if options.get("trial", {}).get("is_rehearsal"):
        from hotloop.agent.observe.rehearsal import RehearsalWatch

        rehearsal = RehearsalWatch(options["trial"], session)
        session.subscribe(rehearsal)
        losses = {"run-backward": rehearsal.losses.wrap_backward, "scaler-init": rehearsal.losses.wrap_scaler_init}
        return {**losses, **dict.fromkeys(("save", "save-safetensors", "save-sharded"), rehearsal.wrap_save)}
    if options.get("trial"):
        from hotloop.agent.observe.trial import TrialWatch

        watch: Any = TrialWatch(options["trial"], session.end)
    elif options.get("numbers"):
        from hotloop.agent.observe.numbers import NumbersWatch

        watch = NumbersWatch(session.record)
    else:
        return {}
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    session.subscribe(watch)
    register_optimizer_step_pre_hook(watch.gradients.before_step)
    register_optimizer_step_post_hook(watch.gradients.after_step)
    report_at_end = session.before_end

    def before_end() -> None:
        report_at_end()
        watch.finish()

    session.before_end = before_end
    return {"run-backward": watch.losses.wrap_backward, "scaler-init": watch.losses.wrap_scaler_init}


def _cuda_started(agent: Agent, timing: Wrap, changes: dict[Site, Wrap]) -> None:
    for site in COPY_SITES:
        _install(agent, site, timing, *(wrap for wrap in (changes.get(site),) if wrap is not None))


def _time_devices(agent: Agent) -> None:
    """With a torch that is built for CUDA: the device's own times of a step's phases, once a model is on it."""
    torch = sys.modules["torch"]
    if torch.version.cuda is None and torch.version.hip is None:
        return
    from hotloop.agent.observe.device_events import CaptureWatch, time_on_cuda

    captures = CaptureWatch()
    agent.time_on_device = lambda agent, index: time_on_cuda(agent, index, captures)
    for name, wrap in (("begin", captures.wrap_begin), ("end", captures.wrap_end)):
        site = Site(id=f"graph-{name}", module="torch.cuda.graphs", path=f"CUDAGraph.capture_{name}")
        _when_cuda_starts(lambda site=site, wrap=wrap: _install(agent, site, wrap))  # type: ignore[misc]


def _when_cuda_starts(then: Callable[[], Any]) -> None:
    """Call ``then`` when the training initializes CUDA, or now if it has: until then there is nothing to watch."""
    lazy_call = getattr(sys.modules["torch"].cuda, "_lazy_call", None)
    if lazy_call is not None:
        lazy_call(then)


def _install(agent: Agent, site: Site, *wraps: Wrap) -> None:
    try:
        problem = install(site, wraps)
    except Exception as error:
        GUARD.record(f"patching {site.id}", error)
        return
    if problem is not None and not site.id.startswith(("collective-", "copy-", "graph-")):
        agent.note_missing(f"{site.id}: {problem}")


@guarded
def _watch_compilation(agent: Agent) -> None:
    """Ask torch.compile to say when it starts and ends compiling."""

    def begins(*_: Any) -> None:
        agent.compile_used = True
        agent.compiling = get_ident() == agent.owner
        agent.ring.emit(COMPILE_IN)

    def ends(*_: Any) -> None:
        agent.compiling = False
        agent.ring.emit(COMPILE_OUT)
        agent.next_look_ns = 0

    handler = sys.modules["torch._dynamo.callback"].callback_handler
    handler.register_start_callback(begins)
    handler.register_end_callback(ends)


def _hide_from_dynamo() -> None:
    """Frames of ours that run while Dynamo looks for frames to compile are left alone; tracing still inlines them."""
    skip_code = sys.modules["torch._dynamo.eval_frame"].skip_code
    for name, module in list(sys.modules.items()):
        if name.startswith("hotloop.") and module is not None:
            for code in _codes(vars(module).values(), name):
                skip_code(code)


def _codes(values: Any, module_name: str) -> list[CodeType]:
    """The code objects of a module's functions, methods and properties, nested ones included."""
    found: list[CodeType] = []
    for value in list(values):
        if isinstance(value, type) and value.__module__ == module_name:
            found += _codes(vars(value).values(), module_name)
            continue
        if isinstance(value, property):
            found += _codes((value.fget, value.fset), module_name)
            continue
        function = getattr(value, "__func__", value)
        while function is not None:
            code = getattr(function, "__code__", None)
            if isinstance(code, CodeType):
                found += _nested(code)
            function = getattr(function, "__wrapped__", None)
    return found


def _nested(code: CodeType) -> list[CodeType]:
    return [code, *(inner for const in code.co_consts if isinstance(const, CodeType) for inner in _nested(const))]
