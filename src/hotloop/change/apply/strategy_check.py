"""Strategy x known techniques -> the same strategy, or one error that names the key."""

from __future__ import annotations

from collections.abc import Mapping

from hotloop.change.apply.acts import BY_HAND
from hotloop.core.errors import suggest_known
from hotloop.core.findings import Value
from hotloop.core.strategy import Choice, Strategy, StrategyError
from hotloop.core.techniques import Setting, Technique


def check_strategy(strategy: Strategy, techniques: Mapping[str, Technique], *, source: str = "strategy") -> Strategy:
    """The strategy, when every id and setting is known, in range and free of conflicts.

    Raises StrategyError: the text names the file, the key, its value, and what to write instead.
    """
    chosen = {choice.technique for choice in strategy.choices}
    for choice in strategy.choices:
        if choice.technique not in techniques:
            if choice.technique in BY_HAND:
                raise StrategyError(
                    f"{source}: {choice.technique} changes training itself and cannot be applied by a strategy; see: "
                    f"hotloop rule {choice.technique}"
                )
            raise StrategyError(
                f"{source}: unknown technique {choice.technique!r}{suggest_known(choice.technique, techniques)}"
            )
        technique = techniques[choice.technique]
        settings = settings_of(technique, choice, source=source)
        problem = technique.check(settings, strategy)
        if problem is not None:
            raise StrategyError(f"{source}: techniques.{choice.technique}.{problem}")
        for other in technique.conflicts:
            if other in chosen:
                raise StrategyError(
                    f"{source}: {choice.technique} and {other} conflict: remove one of [techniques.{choice.technique}] "
                    f"and [techniques.{other}]"
                )
    return strategy


def settings_of(technique: Technique, choice: Choice, *, source: str = "strategy") -> dict[str, Value]:
    """The choice's settings with the technique's defaults filled in; raises StrategyError for an impossible one."""
    known = {setting.name: setting for setting in technique.settings}
    for key, value in choice.settings.items():
        place = f"{source}: techniques.{choice.technique}.{key}"
        if key not in known:
            raise StrategyError(f"{place}: unknown setting{suggest_known(key, known) or '; it has no settings'}")
        problem = _problem(known[key], value)
        if problem is not None:
            raise StrategyError(f"{place} is {value!r}: {problem}")
    return {name: choice.settings.get(name, setting.default) for name, setting in known.items()}


def _problem(setting: Setting, value: Value) -> str | None:
    if value is None and setting.default is None:
        return None
    kind = setting.kind
    fits = isinstance(value, (int, float)) if kind is float else isinstance(value, kind)
    if not fits or (kind is not bool and isinstance(value, bool)):
        return f"write {_NAMES[kind]}"
    if setting.choices and value not in setting.choices:
        return "write one of " + ", ".join(repr(choice) for choice in setting.choices)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value != value or (setting.least is not None and value < setting.least):
            return f"the minimum is {setting.least:g}" if setting.least is not None else "write a number"
        if setting.most is not None and value > setting.most:
            return f"the maximum is {setting.most:g}"
    return None


_NAMES: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
