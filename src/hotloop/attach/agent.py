"""Options -> an armed process: every site patched once, a session that waits for the first step."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

from hotloop.attach.imports import ImportWatch
from hotloop.attach.narrowing import ModulePatch
from hotloop.attach.sites import COPY_SITES, SITES, Site, Wrap, install
from hotloop.observe import compiling, facts, wrappers
from hotloop.observe.guard import GUARD
from hotloop.observe.session import Session

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
        "copy": wrappers.wrap_copy(session),
    }


def arm_agent(options: dict[str, Any]) -> Session:
    """Patch torch in this process. Starts no thread and opens no file. Arming twice answers the same session."""
    global _session
    if _session is not None:
        return _session
    session = _session = Session(options)
    watch = ImportWatch()
    subscribers = subscribers_of(session)
    sites = SITES + (COPY_SITES if facts.accelerator_type() is not None else ())
    for site in sites:
        wrap = subscribers.get(site.id) or subscribers[site.id.partition("-")[0]]
        watch.after_import(site.module, lambda site=site, wrap=wrap: _install(session, site, wrap))  # type: ignore[misc]
    session.module_patch = ModulePatch(session)
    _hook_optimizers(session, watch)
    watch.after_import("torch._dynamo.callback", lambda: compiling.watch_compilation(session))
    gc.callbacks.append(wrappers.gc_callback(session))
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=session.reset_after_fork)
    return session


def _install(session: Session, site: Site, wrap: Wrap) -> None:
    try:
        problem = install(site, (wrap,))
    except Exception as error:
        GUARD.record(f"patching {site.id}", error)
        return
    if problem is not None and not site.id.startswith(("collective-", "copy-")):
        session.missing_sites.append(f"{site.id}: {problem}")


def _hook_optimizers(session: Session, watch: ImportWatch) -> None:
    """Global step hooks; torch.compile must not look into them, so they are marked once Dynamo is there."""
    from torch.optim import optimizer as module

    before, after = wrappers.optimizer_hooks(session)
    first = module.register_optimizer_step_pre_hook(before)
    last = module.register_optimizer_step_post_hook(after)

    def hide_from_dynamo() -> None:
        disable = sys.modules["torch._dynamo"].disable
        pre, post = module._global_optimizer_pre_hooks, module._global_optimizer_post_hooks
        if first.id in pre:
            pre[first.id] = disable(before)
        if last.id in post:
            post[last.id] = disable(after)

    watch.after_import("torch._dynamo", hide_from_dynamo)
