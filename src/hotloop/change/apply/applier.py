"""Strategy -> its techniques called at the right moment, each effect recorded. Nothing here raises into a training."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from hotloop.change.apply.strategy_check import settings_of
from hotloop.core.applied import APPLIED, FAILED, NOT_APPLICABLE, AppliedTechnique
from hotloop.core.findings import Value, Where
from hotloop.core.machine import count_cores
from hotloop.core.strategy import Choice, Strategy
from hotloop.core.techniques import Applied, Call, CopyChange, Effect, NotApplicable, Technique, has_hook

MEETINGS = {
    "start": "the process",
    "change_loader": "the script built no DataLoader",
    "change_ddp": "the script built no DistributedDataParallel",
    "change_model": "the script called no module with gradients",
    "change_optimizer": "the script used no optimizer",
    "change_scaler": "the script built no GradScaler",
    "change_call": "the script did not call the functions that it changes",
}
"""Hooks that a technique may define, and what to say when none of them was ever reached."""

MOST_CALL_PLACES = 1_000
"""Places of calls that are remembered; calls from further ones (generated code) stay as they are."""


@dataclass(slots=True)
class ProcessContext:
    """The Context of hotloop.core.techniques, read from this process's environment."""

    strategy: Strategy
    from_outside: bool
    rank: int
    world_size: int
    local_world_size: int
    cores: int
    known_models: list[weakref.ref[Any]]
    known_optimizers: list[weakref.ref[Any]]
    _memories: dict[str, dict[str, Any]]
    on_report: Callable[[str, Effect], None] = lambda technique, effect: None

    def report(self, technique: str, effect: Effect) -> None:
        self.on_report(technique, effect)

    def memory(self, technique: str) -> dict[str, Any]:
        return self._memories.setdefault(technique, {})

    def optimizers(self) -> list[Any]:
        return [one for one in (reference() for reference in self.known_optimizers) if one is not None]

    def models(self) -> list[Any]:
        return [one for one in (reference() for reference in self.known_models) if one is not None]


def make_context(strategy: Strategy, *, from_outside: bool) -> ProcessContext:
    """The context of this process; ranks are torchrun's variables."""
    return ProcessContext(
        strategy=strategy,
        from_outside=from_outside,
        rank=_integer(os.environ.get("RANK"), 0),
        world_size=_integer(os.environ.get("WORLD_SIZE"), 1),
        local_world_size=_integer(os.environ.get("LOCAL_WORLD_SIZE"), 1),
        cores=count_cores(),
        known_models=[],
        known_optimizers=[],
        _memories={},
    )


class Applier:
    """Calls the techniques of a strategy, in the order of their stages.

    ``emit(record)`` receives what happened; ``find_place()`` returns the user's line that is running now.
    """

    def __init__(
        self,
        strategy: Strategy,
        techniques: Mapping[str, Technique],
        context: ProcessContext,
        *,
        emit: Callable[[AppliedTechnique], None] = lambda record: None,
        find_place: Callable[[], Where | None] = lambda: None,
    ) -> None:
        self.context = context
        context.on_report = self._report
        self.records: list[AppliedTechnique] = []
        self._emit = emit
        self._find_place = find_place
        self._plan: list[tuple[Technique, dict[str, Value], Choice]] = sorted(
            (
                (techniques[choice.technique], settings_of(techniques[choice.technique], choice), choice)
                for choice in strategy.choices
            ),
            key=lambda entry: (entry[0].stage, entry[0].id),
        )
        self._undo: list[Callable[[], None]] = []
        self._met: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self._places: weakref.WeakKeyDictionary[Any, Where] = weakref.WeakKeyDictionary()
        self._places_of_calls: dict[tuple[Any, ...], Where | None] = {}
        self._reported_calls: set[tuple[Any, ...]] = set()
        self._asked: set[str] = set()
        self.waiting: list[weakref.ref[Any]] = []
        """Optimizers that were built and not used yet."""
        self.step_watchers = [technique for technique, _, _ in self._plan if technique.watch_steps]

    def has(self, hook: str) -> bool:
        """Whether any chosen technique defines the hook."""
        return any(has_hook(technique, hook) for technique, _, _ in self._plan)

    def start(self) -> None:
        self._call("start", None, "the process", None)

    def loader_built(self, loader: Any) -> Any:
        return self._call("change_loader", loader, type(loader).__name__, self._find_place())

    def ddp_arguments(self, arguments: dict[str, Any]) -> None:
        """``arguments`` of DistributedDataParallel by name are changed in place."""
        self._call("change_ddp", arguments, "DistributedDataParallel", self._find_place())

    def copy_changes(self) -> list[CopyChange]:
        """The changes that the techniques want at each copy of a CPU tensor."""
        made = [technique.change_copies(settings, self.context) for technique, settings, _ in self._plan]
        return [one for one in made if one is not None]

    def scaler_built(self, scaler: Any) -> Any:
        return self._call("change_scaler", scaler, type(scaler).__name__, self._find_place())

    def optimizer_built(self, optimizer: Any) -> None:
        """Remember it: its own constructor is still running."""
        place = self._find_place()
        reference = weakref.ref(optimizer)
        self.waiting.append(reference)
        self.context.known_optimizers.append(reference)
        if place is not None:
            self._places[optimizer] = place

    def model_met(self, model: Any) -> Any:
        """An outermost module with parameters is about to be called with gradients; every module is met once."""
        if self._met.get(model):
            return model
        self._met[model] = True
        self.context.known_models.append(weakref.ref(model))
        changed = self._call("change_model", model, type(model).__name__, self._find_place())
        if changed is not model:
            self._met[changed] = True
        return changed

    def optimizers_first_used(self) -> None:
        """Everything is built: change the optimizers that wait for it."""
        waiting, self.waiting = self.waiting, []
        for reference in waiting:
            optimizer = reference()
            if optimizer is not None:
                self.change_optimizer(optimizer)

    def change_optimizer(self, optimizer: Any) -> Any:
        return self._call("change_optimizer", optimizer, type(optimizer).__name__, self._places.get(optimizer))

    def after_step(self) -> None:
        for technique in self.step_watchers:
            try:
                technique.after_step(self.context)
            except Exception as error:
                self.step_watchers.remove(technique)
                self._note(technique, {}, error)
                return

    def functions(self) -> tuple[str, ...]:
        """The functions of torch whose calls some technique may change, as 'module:dotted.path'."""
        return tuple(sorted({name for technique, _, _ in self._plan for name in technique.functions}))

    def change_call(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any, caller: FrameType) -> Call:
        """The call to make instead of ``function(*args, **kwargs)``; ``caller`` is the frame that calls it."""
        module = caller.f_globals.get("__name__", "")
        call = Call(name=name, function=function, args=args, kwargs=dict(kwargs), caller=module)
        key = (name, caller.f_code, caller.f_lineno)
        known = key in self._places_of_calls
        if not known:
            if len(self._places_of_calls) >= MOST_CALL_PLACES:
                return call
            self._places_of_calls[key] = self._find_place()
        where = self._places_of_calls[key]
        for technique, settings, choice in self._plan:
            if name not in technique.functions or not _is_meant(choice, where):
                continue
            shown = name.rpartition(":")[2]
            before = (call.function, call.args, dict(call.kwargs))
            try:
                effect = technique.change_call(call, settings, self.context)
            except Exception as error:
                call.function, call.args, call.kwargs = before
                self._note(technique, settings, error, shown, where)
                continue
            if effect is not None and (key, technique.id, type(effect)) not in self._reported_calls:
                self._reported_calls.add((key, technique.id, type(effect)))
                self._note(technique, settings, effect, shown, where)
        return call

    def finish(self) -> None:
        """Say of every technique that met no object of its own why nothing happened."""
        reported = {record.technique for record in self.records}
        for technique, settings, _ in self._plan:
            if technique.id in reported:
                continue
            hooks = [hook for hook in MEETINGS if hook != "start" and has_hook(technique, hook)]
            if hooks:
                asked = self.context.memory(technique.id).get("why_not", "it found nothing to change")
                why = asked if technique.id in self._asked else MEETINGS[hooks[0]]
                self._note(technique, settings, NotApplicable(why=why))
            elif technique.watch_steps and self.context.from_outside:  # by API the steps are still to come
                self._note(technique, settings, NotApplicable(why="the run had too few steps"))

    def give_up(self, techniques: Collection[str]) -> None:
        """Leave these to somebody else, who also says what became of them."""
        self._plan = [entry for entry in self._plan if entry[0].id not in techniques]

    def undo(self) -> None:
        """Take everything back that can be taken back, last first."""
        while self._undo:
            self._undo.pop()()

    def _call(self, hook: str, target: Any, name: str, where: Where | None) -> Any:
        for technique, settings, choice in self._plan:
            if not has_hook(technique, hook) or not _is_meant(choice, where):
                continue
            if hook != "start":
                self._asked.add(technique.id)
            try:
                arguments = (settings, self.context) if hook == "start" else (target, settings, self.context)
                effect: Effect = getattr(technique, hook)(*arguments)
            except Exception as error:
                self._note(technique, settings, error, name, where)
                continue
            self._note(technique, settings, effect, name, where)
            if isinstance(effect, Applied) and effect.replacement is not None:
                target = effect.replacement
        return target

    def _report(self, technique_id: str, effect: Effect) -> None:
        """A technique's own report on the object that it changed last."""
        last = next((one for one in reversed(self.records) if one.technique == technique_id), None)
        target, where = ("the process", None) if last is None else (last.target or "the process", last.where)
        for technique, settings, _ in self._plan:
            if technique.id == technique_id:
                self._note(technique, settings, effect, target, where)

    def _note(
        self,
        technique: Technique,
        settings: Mapping[str, Value],
        effect: Effect | Exception,
        target: str | None = None,
        where: Where | None = None,
    ) -> None:
        """Record what came of a technique; ``effect`` is an error where its hook failed."""
        if effect is None:
            return
        record = describe_effect(technique, settings, effect, target, where)
        if record not in self.records:
            self.records.append(record)
            self._emit(record)
        if isinstance(effect, Applied) and effect.undo is not None:
            self._undo.append(effect.undo)


def describe_effect(
    technique: Technique,
    settings: Mapping[str, Value],
    effect: Applied | NotApplicable | Exception,
    target: str | None,
    where: Where | None = None,
) -> AppliedTechnique:
    """The record of an effect, or of the error that a hook raised."""
    record = AppliedTechnique(
        technique=technique.id,
        settings=dict(settings),
        status=FAILED,
        detail=f"{type(effect).__name__}: {effect}",
        target=target,
        where=where,
        numerics=None,
    )
    if isinstance(effect, Applied):
        numerics = (effect.numerics or technique.numerics).value
        record = replace(record, status=APPLIED, detail=effect.detail, numerics=numerics, values=dict(effect.values))
        return replace(record, explicit=effect.explicit)
    if isinstance(effect, NotApplicable):
        return replace(record, status=NOT_APPLICABLE, detail=effect.why, explicit=effect.explicit)
    return record


def _is_meant(choice: Choice, where: Where | None) -> bool:
    """A choice with places acts on objects that were built there, by the end of the file's path and the line."""
    if not choice.where or where is None:
        return not choice.where
    for place in choice.where:
        file, _, line = place.rpartition(":")
        if line == str(where.line) and ("/" + where.file).endswith("/" + file.lstrip("./")):
            return True
    return False


def _integer(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdigit() else default
