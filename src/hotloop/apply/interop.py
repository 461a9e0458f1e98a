"""Strategy -> the configuration of another training library, with a warning for whatever that cannot say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hotloop.apply import TECHNIQUES
from hotloop.core.catalogue import Catalogue
from hotloop.core.sources import Arguments
from hotloop.core.strategy import Strategy

INSTEAD = "left out; use `hotloop run --strategy` or change it by hand"
DDP = "DistributedDataParallel"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignConfig:
    """A strategy in another library's words.

    ``text`` is the configuration file. ``arguments`` holds what the library takes in code: by the name of what is
    called (``Accelerator``, ``DataLoader``, ``optimizer``), its keyword arguments. ``warnings`` says of every choice
    that the format cannot express what to do instead; nothing is left out without one.
    """

    format: str
    text: str
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(slots=True)
class Chosen:
    """What a format is asked to say, by technique id; settings that are None are not among them.

    A format takes every technique that it can say, and pops every setting of it that it says. What remains, techniques
    and settings, is told to the user, so nothing is left out in silence.
    """

    waiting: dict[str, dict[str, Any]]
    taken: dict[str, dict[str, Any]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def __contains__(self, technique: str) -> bool:
        return technique in self.waiting

    def look(self, technique: str) -> Mapping[str, Any]:
        """Its settings, empty where it is not chosen."""
        return self.waiting.get(technique, {})

    def take(self, technique: str) -> dict[str, Any] | None:
        """Its settings, to be popped from; None where it is not chosen."""
        found = self.waiting.pop(technique, None)
        if found is not None:
            self.taken[technique] = found
        return found

    def refuse(self, technique: str, why: str) -> None:
        """The format has a key for it, which does not do the same."""
        self.reasons[technique] = why

    def take_arguments(self, *, with_ddp: bool) -> dict[str, dict[str, Any]]:
        """Of the techniques that are arguments of what the user's code builds: by what is called, its arguments."""
        found: dict[str, dict[str, Any]] = {}
        for technique in sorted(TECHNIQUES.values(), key=lambda one: (one.stage, one.id)):
            source = technique.source
            if isinstance(source, Arguments) and (with_ddp or source.of != DDP):
                taken = self._take_source(technique.id, source)
                if taken:
                    found.setdefault(source.of, {}).update(taken)
        return found

    def _take_source(self, technique: str, source: Arguments) -> dict[str, Any]:
        if source.needs is not None and technique in self and source.needs not in self.look(technique):
            self.refuse(technique, f"{source.needs} is not set: hotloop would choose it when the training runs")
            return {}
        if self.look(technique).keys().isdisjoint(source.names):
            return {}
        settings = self.take(technique) or {}
        return {name: settings.pop(name) for name in source.names if name in settings}


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One library's configuration.

    ``write(chosen, batch_size, accumulate)`` takes what it can say out of ``chosen``; what is left there becomes
    warnings.
    """

    id: str
    write: Callable[[Chosen, int | None, int | None], ForeignConfig]


FORMATS: Catalogue[Format] = Catalogue(Format, "hotloop.apply.formats")


def export_strategy(
    strategy: Strategy, format: str, *, batch_size: int | None = None, accumulate: int | None = None
) -> ForeignConfig:
    """The strategy as ``accelerate`` or ``deepspeed`` says it.

    >>> exported = export_strategy(Strategy(choices=(Choice(technique="bf16-autocast"),)), "accelerate")
    >>> dict(exported.arguments["Accelerator"])
    {'mixed_precision': 'bf16'}
    """
    asked: dict[str, dict[str, Any]] = {}
    warnings = []
    for choice in strategy.choices:
        if choice.where:
            warnings.append(
                f"{choice.technique}: {format} cannot limit it to {', '.join(choice.where)}; left out; use "
                "`hotloop run --strategy`"
            )
            continue
        settings = _defaults_of(choice.technique) | dict(choice.settings)
        asked[choice.technique] = {key: value for key, value in settings.items() if value is not None}
    chosen = Chosen(asked)
    exported = FORMATS[format].write(chosen, batch_size, accumulate)
    warnings += [
        f"{technique}: {chosen.reasons.get(technique, f'{format} has no key for it')}; {INSTEAD}"
        for technique in chosen.waiting
    ]
    for technique, settings in chosen.taken.items():
        # A setting that was left as it is says nothing that the technique itself does not say.
        left = {key: value for key, value in settings.items() if value != _defaults_of(technique).get(key)}
        if left:
            named = ", ".join(f"{key} = {show(value)}" for key, value in left.items())
            warnings.append(f"{technique}: {format} has no key for {named}; {INSTEAD}")
    return replace(exported, warnings=(*exported.warnings, *warnings))


def _defaults_of(technique: str) -> dict[str, Any]:
    return {one.name: one.default for one in TECHNIQUES[technique].settings}


def show(value: Any) -> str:
    """A foreign value in a few characters."""
    if isinstance(value, (dict, list)):
        return f"{'a table' if isinstance(value, dict) else 'a list'} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
