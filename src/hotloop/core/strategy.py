"""Strategy: every performance choice of a training run as one value, and its TOML and JSON forms.

    schema = "hotloop.strategy/1"
    name = "fast"

    [techniques.fused-optimizer]

    [techniques.loader-workers]
    num_workers = 2
    where = ["train.py:42"]          # only the loader that this line builds

A table under ``techniques`` switches a technique on; its keys are that technique's settings. Missing settings keep the
technique's default. The order in the file does not matter: every technique knows its own stage.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import UsageError
from .findings import Value
from .input_file import read_bounded

SCHEMA = "hotloop.strategy/1"
MOST_BYTES = 1 << 20


class StrategyError(UsageError):
    """A strategy is malformed: the text names the file, the key and what to write instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One technique that is switched on. ``where`` limits it to objects built at these places (``file:line``)."""

    technique: str
    settings: Mapping[str, Value] = field(default_factory=dict)
    where: tuple[str, ...] = ()
    override: bool = False
    """Replace what the script itself sets explicitly; otherwise that stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """Choices, one per technique, sorted by technique id. Equal content makes equal strategies."""

    choices: tuple[Choice, ...] = ()
    name: str | None = None

    def __post_init__(self) -> None:
        ids = [choice.technique for choice in self.choices]
        twice = sorted({one for one in ids if ids.count(one) > 1})
        if twice:
            raise StrategyError(f"technique {twice[0]} is listed twice; list it once with all its settings")
        object.__setattr__(self, "choices", tuple(sorted(self.choices, key=lambda choice: choice.technique)))

    def __bool__(self) -> bool:
        return bool(self.choices)

    def get(self, technique: str) -> Choice | None:
        return next((choice for choice in self.choices if choice.technique == technique), None)

    def overrides(self, technique: str) -> bool:
        """Whether this technique may replace what the script sets explicitly."""
        choice = self.get(technique)
        return choice is not None and choice.override


def chain(*strategies: Strategy, name: str | None = None) -> Strategy:
    """The strategies one after the other: later ones add techniques and replace settings key by key.

    >>> a = Strategy(choices=(Choice(technique="x", settings={"k": 1, "l": 2}),))
    >>> chain(a, Strategy(choices=(Choice(technique="x", settings={"k": 3}),))).choices[0].settings
    {'k': 3, 'l': 2}
    """
    found: dict[str, Choice] = {}
    for strategy in strategies:
        for choice in strategy.choices:
            before = found.get(choice.technique)
            settings = {**before.settings, **choice.settings} if before is not None else dict(choice.settings)
            where = choice.where or (before.where if before is not None else ())
            override = choice.override or (before is not None and before.override)
            found[choice.technique] = Choice(
                technique=choice.technique, settings=settings, where=where, override=override
            )
    return Strategy(choices=tuple(found.values()), name=name)


def describe_library_choices(techniques: Iterable[str]) -> str:
    """What a reader of the strategy has to know about techniques that need the training library."""
    return f"{', '.join(techniques)}: by hotloop's Trainer or apply_strategy, not on an unmodified script"


def load_strategy(path: str | Path) -> Strategy:
    """Read a strategy file (TOML). Raises StrategyError with the file's name."""
    source = str(path)
    data = read_bounded(path, MOST_BYTES, "strategy", StrategyError)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StrategyError(f"{source}: byte {error.start} is not UTF-8; a strategy must be a TOML file") from error
    return parse_strategy(text, source=source)


def parse_strategy(text: str, *, source: str = "strategy") -> Strategy:
    """TOML text -> Strategy. Ids and settings are checked by ``hotloop.change.apply.strategy_check``."""
    import tomllib

    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise StrategyError(f"{source}: not TOML: {error}") from error
    return strategy_from_mapping(content, source=source)


def strategy_from_mapping(content: Any, *, source: str = "strategy") -> Strategy:
    """The parsed form of TOML or JSON -> Strategy."""
    if not isinstance(content, dict):
        raise StrategyError(f"{source}: a strategy must be a table, not {type(content).__name__}")
    schema = content.get("schema")
    if schema != SCHEMA:
        raise StrategyError(f'{source}: schema is {schema!r}; the first line must be: schema = "{SCHEMA}"')
    for key in content:
        if key not in ("schema", "name", "techniques"):
            raise StrategyError(f"{source}: unknown key {key!r}; known: schema, name, techniques")
    name = content.get("name")
    if name is not None and not isinstance(name, str):
        raise StrategyError(f"{source}: name is {name!r}; write a string")
    techniques = content.get("techniques", {})
    if not isinstance(techniques, dict):
        raise StrategyError(
            f"{source}: techniques is {techniques!r}; write tables such as [techniques.fused-optimizer]"
        )
    choices = []
    for technique, settings in techniques.items():
        if not isinstance(settings, dict):
            raise StrategyError(f"{source}: techniques.{technique} is {settings!r}; write a table of its settings")
        where = settings.get("where", [])
        if not isinstance(where, list) or not all(isinstance(place, str) and ":" in place for place in where):
            raise StrategyError(f'{source}: techniques.{technique}.where is {where!r}; write places: ["train.py:42"]')
        override = settings.get("override", False)
        if not isinstance(override, bool):
            raise StrategyError(f"{source}: techniques.{technique}.override is {override!r}; write true or false")
        rest = {key: value for key, value in settings.items() if key not in ("where", "override")}
        choices.append(Choice(technique=technique, settings=rest, where=tuple(where), override=override))
    return Strategy(choices=tuple(choices), name=name)


def strategy_to_mapping(strategy: Strategy) -> dict[str, Any]:
    """The content that JSON carries to the training's processes, and that TOML holds."""
    content: dict[str, Any] = {"schema": SCHEMA}
    if strategy.name is not None:
        content["name"] = strategy.name
    content["techniques"] = {
        choice.technique: {
            **choice.settings,
            **({"where": list(choice.where)} if choice.where else {}),
            **({"override": True} if choice.override else {}),
        }
        for choice in strategy.choices
    }
    return content


def strategy_to_toml(strategy: Strategy) -> str:
    """TOML text; ``parse_strategy`` returns the same strategy.

    >>> print(strategy_to_toml(Strategy(choices=(Choice(technique="a", settings={"k": True}),))), end="")
    schema = "hotloop.strategy/1"
    <BLANKLINE>
    [techniques.a]
    k = true
    """
    content = strategy_to_mapping(strategy)
    lines = [f"{key} = {_toml_value(content[key])}" for key in ("schema", "name") if key in content]
    for technique, settings in content["techniques"].items():
        lines += ["", f"[techniques.{_toml_key(technique)}]"]
        lines += [f"{_toml_key(key)} = {_toml_value(value)}" for key, value in settings.items()]
    return "\n".join(lines) + "\n"


def _toml_key(key: str) -> str:
    bare = key.replace("-", "").replace("_", "")
    return key if bare.isalnum() and bare.isascii() else _toml_string(key)


def _toml_string(text: str) -> str:
    """JSON's escapes are TOML's, with two exceptions: DEL has to be escaped, and half of a surrogate pair is
    refused."""
    if any("\ud800" <= one <= "\udfff" for one in text):
        raise StrategyError(
            f"{text!r} cannot be written: it contains half of a surrogate pair; use complete characters"
        )
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _toml_string(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(one) for one in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml_key(key)} = {_toml_value(one)}" for key, one in value.items()) + "}"
    raise StrategyError(
        f"{value!r} cannot be a setting; settings are strings, numbers, true or false, and lists of these"
    )
