"""Options with a strategy -> an Applier that this process's sites call, outside of what times them."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from hotloop.agent.observe.guard import GUARD
from hotloop.agent.observe.hooks import unseen
from hotloop.agent.observe.local import Session
from hotloop.agent.observe.places import caller_place
from hotloop.change.apply import ABLATIONS, TECHNIQUES
from hotloop.change.apply.applier import Applier, make_context
from hotloop.change.apply.offer import Offer, offer_choices
from hotloop.core.applied import AppliedTechnique
from hotloop.core.findings import Where
from hotloop.core.strategy import Choice, Strategy, chain, strategy_from_mapping
from hotloop.core.techniques import CopyChange, Technique

from .sites import ALIASES, COPY_SITES, SITES, Site, Wrap

Call = Callable[..., Any]


def apply_to_process(options: dict[str, Any], session: Session) -> dict[Site, Wrap]:
    """Begin to apply the options' strategy and ablation; returns the wrappers to install, by site."""
    strategy = strategy_from_mapping(options["strategy"]) if options.get("strategy") else Strategy()
    known: Mapping[str, Technique] = TECHNIQUES
    if options.get("ablation"):
        known = {**TECHNIQUES, **ABLATIONS}
        strategy = chain(strategy, Strategy(choices=(Choice(technique=options["ablation"]),)))
    applier = Applier(
        strategy,
        known,
        make_context(strategy, from_outside=True),
        emit=lambda record: _record(session, record),
        find_place=_find_place,
    )
    for fact in options.get("variables") or ():
        session.record_when_started(dict(fact))
    applier.start()
    for_library = tuple(choice for choice in strategy.choices if known[choice.technique].needs_library)
    if for_library:
        chosen = Strategy(choices=for_library, name=strategy.name)
        offer_choices(Offer(strategy=chosen, emit=functools.partial(_record, session), give_up=applier.give_up))
    if applier.has("change_model"):
        session.meets_model = applier.model_met
    if applier.step_watchers:
        session.subscribe(lambda session, row: applier.after_step())
    session.before_end = applier.finish
    wraps = {
        "loader-init": _after_init(applier.loader_built),
        "optimizer-init": _after_init(applier.optimizer_built),
        "scaler-init": _after_init(applier.scaler_built),
        "ddp-init": _change_ddp(applier),
        "run-backward": _before_first_use(applier),
    }
    found = {site: wraps[site.id] for site in SITES if site.id in wraps}
    copies = applier.copy_changes()
    if copies:
        found |= {site: _change_copies(copies) for site in COPY_SITES}
    return found | {function_site(name): _change_calls(applier, name) for name in applier.functions()}


def function_site(name: str) -> Site:
    """The site of a function of torch (``module:dotted.path``): one of SITES, or a new site patched for this alone."""
    module, _, path = name.partition(":")
    known = next((site for site in SITES if (site.module, site.path) == (module, path)), None)
    return known or Site(id=f"function-{path}", module=module, path=path, aliases=ALIASES)


def _record(session: Session, record: AppliedTechnique) -> None:
    session.record_when_started(record.as_fact())


def _find_place() -> Where | None:
    place = caller_place(2)
    return None if place is None else Where(file=place[0], line=place[1], function=place[2])


def _after_init(then: Callable[[Any], Any]) -> Wrap:
    """A constructor: ``then`` gets the object when it is built."""

    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            try:
                then(self)
            except Exception as error:
                GUARD.record("applying a strategy", error)

        return unseen(__init__)

    return wrap


def _change_ddp(applier: Applier) -> Wrap:
    def wrap(original: Call) -> Call:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            try:
                bound = signature.bind(self, *args, **kwargs)
                arguments = {name: value for name, value in bound.arguments.items() if name != "self"}
                applier.ddp_arguments(arguments)
            except Exception as error:  # also for arguments that the original refuses itself
                GUARD.record("applying a strategy", error)
                original(self, *args, **kwargs)
                return
            original(self, **arguments)

        return unseen(__init__)

    return wrap


def _change_calls(applier: Applier, name: str) -> Wrap:
    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def changed(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(*args, **kwargs)
            call = applier.change_call(name, original, args, kwargs, sys._getframe(1))
            return call.function(*call.args, **call.kwargs)

        return changed

    return wrap


def _change_copies(changes: list[CopyChange]) -> Wrap:
    """``Tensor.to`` and ``Tensor.cuda`` of CPU tensors; ``copy_`` and all else stay as they are."""

    def wrap(original: Call) -> Call:
        if original.__name__ not in ("to", "cuda"):
            return original

        @functools.wraps(original)
        def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self.is_cpu and not torch.compiler.is_compiling():
                for change in changes:
                    change(self, args, kwargs)
            return original(self, *args, **kwargs)

        return copy

    return wrap


def _before_first_use(applier: Applier) -> Wrap:
    """Backward: by then every optimizer is built, and none of them has stepped."""

    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
            if applier.waiting and not torch.compiler.is_compiling():
                applier.optimizers_first_used()
            return original(*args, **kwargs)

        return _engine_run_backward

    return wrap
