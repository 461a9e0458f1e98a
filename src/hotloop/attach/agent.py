"""Options -> an armed process: every site patched once, a session that waits for the first step."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

from hotloop.attach.forwards import ForwardPatches
from hotloop.attach.imports import ImportWatch
from hotloop.attach.narrowing import ModulePatch
from hotloop.attach.sites import COPY_SITES, SITES, Site, Wrap, install
from hotloop.attach.unsynced import FORWARD, wrap_forward
from hotloop.observe import background, deep, distributed, graph_calls, tracing, wrappers
from hotloop.observe.at_exit import run_at_exit
from hotloop.observe.guard import GUARD
from hotloop.observe.session import Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hotloop.observe.gradients import GradientWatch
    from hotloop.observe.losses import LossWatch

_STEP = "optimizer-step"
"""What is noted of gradients at optimizers' steps: no site, because every class has a step of its own."""
_session: Session | None = None


def current_session() -> Session | None:
    """The session of this process, when it is armed."""
    return _session


def subscribers_of(session: Session) -> dict[str, Wrap]:
    """What observe does at each site, by site id (collectives and copies by their prefix)."""
    return {
        "loader-init": wrappers.wrap_loader_init(session),
        "loader-iter": wrappers.wrap_loader_iter(session),
        "loader-next": wrappers.wrap_loader_next(session),
        "fetch": wrappers.wrap_fetcher_fetch(session),
        "module-call": wrappers.wrap_module_call(session),
        "run-backward": wrappers.wrap_run_backward(session),
        "optimizer-init": wrappers.wrap_optimizer_init(session),
        "scaler-init": wrappers.wrap_scaler_init(session),
        "scaler-step": wrappers.wrap_scaler_step(session),
        "scaler-unscale": wrappers.wrap_scaler_work(session),
        "scaler-update": wrappers.wrap_scaler_work(session),
        "save": wrappers.wrap_checkpoint(session),
        "checkpoint": wrappers.wrap_activation_checkpoint(session),
        "ddp-init": wrappers.wrap_ddp_init(session),
        "work-wait": wrappers.wrap_collective(session),
        "collective": wrappers.wrap_collective(session),
        "compile": wrappers.wrap_compile(session),
        "graph-call": graph_calls.wrap_graph_call(session),
        "copy": wrappers.wrap_copy(session),
        "graph-begin": session.captures.wrap_begin,
        "graph-end": session.captures.wrap_end,
    }


def arm_agent(options: dict[str, Any]) -> Session:
    """Patch torch in this process. Starts no thread and opens no file. Arming twice answers the same session."""
    global _session
    if _session is not None:
        return _session
    session = _session = Session(options)
    watch = ImportWatch()
    subscribers = subscribers_of(session)
    changes = _changes(options, session)
    if options.get("unsynced"):
        changes = {**changes, FORWARD: wrap_forward}
    notes = _trial(options, session) or _numbers(options, session)
    for site in (*SITES, *(site for site in changes if site not in (*SITES, *COPY_SITES))):
        timing = subscribers.get(site.id) or subscribers.get(site.id.partition("-")[0])
        # What changes a call goes outside what times it.
        wraps = [wrap for wrap in (timing, notes.get(site.id), changes.get(site)) if wrap is not None]
        watch.after_import(site.module, lambda site=site, wraps=wraps: _install(session, site, *wraps))  # type: ignore[misc]
    _when_cuda_starts(lambda: _install_copies(session, subscribers["copy"], changes))
    session.module_patch = ModulePatch(session)
    session.patch_forward = ForwardPatches(session).patch
    _patch_optimizers(session, notes.get(_STEP))
    watch.after_import("torch._dynamo.eval_frame", _hide_from_dynamo)
    watch.after_import("torch._dynamo.callback", lambda: graph_calls.watch_compilation(session))
    gc.callbacks.append(wrappers.gc_callback(session))
    session.subscribe(deep.DeepWindow())
    if options.get("trace"):
        session.subscribe(tracing.make_tracing(options))
    session.make_background = background.Background
    session.watch_ddp = distributed.DdpWatch
    run_at_exit(session.end_without_a_step)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=session.reset_after_fork)
    return session


def _changes(options: dict[str, Any], session: Session) -> dict[Site, Wrap]:
    if not options.get("strategy"):
        return {}
    try:
        from hotloop.attach.applying import apply_to_process

        return apply_to_process(options, session)
    except Exception as error:
        GUARD.record("applying a strategy", error)
        return {}


def _trial(options: dict[str, Any], session: Session) -> dict[str, Wrap]:
    """What a trial of ``hotloop tune`` notes beside the recording, by site id."""
    if not options.get("trial"):
        return {}
    from hotloop.observe.trial import TrialWatch

    watch = TrialWatch(options["trial"], session.end)
    session.subscribe(watch)
    return _until_the_end(session, watch, watch.losses, watch.gradients)


def _numbers(options: dict[str, Any], session: Session) -> dict[str, Wrap]:
    """What ``--watch-numbers`` notes beside the recording, by site id."""
    if not options.get("numbers"):
        return {}
    from hotloop.observe.numbers import NumbersWatch

    watch = NumbersWatch(session.record)
    session.subscribe(watch)
    return _until_the_end(session, watch, watch.losses, watch.gradients)


def _until_the_end(session: Session, watch: Any, losses: LossWatch, gradients: GradientWatch) -> dict[str, Wrap]:
    report_at_end = session.before_end

    def before_end() -> None:
        report_at_end()
        watch.finish()

    session.before_end = before_end
    return {
        "run-backward": losses.wrap_backward,
        "scaler-init": losses.wrap_scaler_init,
        _STEP: gradients.wrap_step,
    }


def _install_copies(session: Session, timing: Wrap, changes: dict[Site, Wrap]) -> None:
    for site in COPY_SITES:
        _install(session, site, timing, *(wrap for wrap in (changes.get(site),) if wrap is not None))


def _when_cuda_starts(then: Callable[[], Any]) -> None:
    """Call ``then`` when the training initialises CUDA, or now if it has: until then there is nothing to watch."""
    lazy_call = getattr(sys.modules["torch"].cuda, "_lazy_call", None)
    if lazy_call is not None:
        lazy_call(then)


def _install(session: Session, site: Site, *wraps: Wrap) -> None:
    try:
        problem = install(site, wraps)
    except Exception as error:
        GUARD.record(f"patching {site.id}", error)
        return
    if problem is not None and not site.id.startswith(("collective-", "copy-", "graph-call")):
        session.missing_sites.append(f"{site.id}: {problem}")


def _patch_optimizers(session: Session, note: Wrap | None) -> None:
    """Wrap the step of every optimizer class: of those that have instances now, and of others at their first one."""
    from torch.optim import Optimizer

    timing = wrappers.wrap_optimizer_step(session)
    wrap = timing if note is None else lambda step: note(timing(step))
    wrapped: set[Any] = set()

    def patch(cls: type) -> None:
        for owner in cls.__mro__:
            step = owner.__dict__.get("step")
            if step is None:
                continue
            if owner is not Optimizer and step not in wrapped:
                replacement = wrap(step)
                wrapped.add(replacement)
                type.__setattr__(owner, "step", replacement)
            return

    session.patch_optimizer_class = patch
    for cls in _subclasses(Optimizer):
        if getattr(cls.__dict__.get("step"), "hooked", False):  # torch marks the classes that have instances
            patch(cls)


def _subclasses(cls: type) -> list[type]:
    found: list[type] = list(cls.__subclasses__())
    for child in list(found):
        found += _subclasses(child)
    return found


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
