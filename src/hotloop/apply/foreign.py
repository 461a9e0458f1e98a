"""The values between a Strategy and another library's configuration, and what every format says the same way."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hotloop.core.findings import Value
from hotloop.core.sources import Arguments

DDP = "DistributedDataParallel"


@dataclass(slots=True)
class Chosen:
    """What a format is asked to say, by technique id; settings that are None are not among them.

    A format takes every technique that it can say, and pops every setting of it that it says. What remains, techniques
    and settings, is told to the user, so nothing is left out in silence.
    """

    waiting: dict[str, dict[str, Any]]
    sources: Mapping[str, Arguments] = field(default_factory=dict)
    """Of techniques that are arguments of what the user's code builds, in the order in which they act."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignConfig:
    """A strategy in another library's words.

    ``text`` is the configuration file. ``arguments`` holds what the library takes in code: by the name of what is
    called (``Trainer``, ``DataLoader``, ``optimizer``), its keyword arguments. ``warnings`` says of every choice that
    the format cannot express what to do instead; nothing is left out without one.
    """

    format: str
    text: str
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A technique that a foreign key asks for, and the key."""

    technique: str
    settings: Mapping[str, Value]
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What a foreign configuration says. Keys that say nothing about performance are in ``warnings``, too."""

    proposals: tuple[Proposal, ...] = ()
    batch_size: int | None = None
    accumulate: int | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One library's configuration.

    ``write(chosen, batch_size, accumulate)`` takes what it can say out of ``chosen``; what is left there becomes
    warnings. ``read`` is None where only writing makes sense; ``syntax`` is 'yaml', 'json' or 'toml'.
    """

    id: str
    syntax: str
    write: Callable[[Chosen, int | None, int | None], ForeignConfig]
    read: Callable[[Mapping[str, Any]], Read] | None


def take_code_arguments(chosen: Chosen) -> dict[str, dict[str, Any]]:
    """What goes to objects that the user's own code builds, whatever the library: taken out of ``chosen``."""
    found: dict[str, dict[str, Any]] = {}
    for technique, source in chosen.sources.items():
        if source.of != DDP and (taken := _take(chosen, technique, source)):
            found.setdefault(source.of, {}).update(taken)
    return found


def ddp_arguments(chosen: Chosen) -> dict[str, Any]:
    """Keyword arguments of DistributedDataParallel; its techniques are taken out of ``chosen``."""
    found: dict[str, Any] = {}
    for technique, source in chosen.sources.items():
        if source.of == DDP:
            found |= _take(chosen, technique, source)
    return found


def _take(chosen: Chosen, technique: str, source: Arguments) -> dict[str, Any]:
    names = {name: name for name in source.names} | dict(source.elsewhere)
    if source.needs is not None and technique in chosen and source.needs not in chosen.look(technique):
        chosen.refuse(technique, f"{source.needs} is not set: hotloop would choose it when the training runs")
        return {}
    if not names.keys() & chosen.look(technique).keys():
        return {}
    settings = chosen.take(technique) or {}
    return {argument: settings.pop(name) for name, argument in names.items() if name in settings}


def is_plain_bf16(chosen: Chosen) -> bool:
    """Whether bf16-parameters is chosen as other libraries mean it: updates rounded to the nearest bfloat16.

    Refused otherwise: an export must not lose what the strategy keeps.
    """
    settings = chosen.look("bf16-parameters")
    if "bf16-parameters" in chosen and settings.get("weights") == "nearest" and settings.get("state") == "bfloat16":
        return True
    if "bf16-parameters" in chosen:
        chosen.refuse(
            "bf16-parameters",
            "its key rounds every update to bfloat16 and loses small ones; it corresponds only to weights = "
            "'nearest' with state = 'bfloat16'",
        )
    return False


def positive(value: Any, key: str, warnings: list[str]) -> int | None:
    """A whole number of at least 1; anything else becomes a warning."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    if value is not None:
        warnings.append(f"{key} is {show(value)}: not a whole number of at least 1; left out")
    return None


def leave_out(content: Mapping[str, Any], known: set[str], prefix: str = "") -> list[str]:
    """A warning for every key that no technique answers to."""
    return [
        f"{prefix}{show_key(key)} = {show(value)}: no hotloop technique corresponds to it; left out"
        for key, value in content.items()
        if key not in known
    ]


def show(value: Any) -> str:
    """A foreign value in a few characters."""
    if isinstance(value, (dict, list)):
        return f"{'a table' if isinstance(value, dict) else 'a list'} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def show_key(key: Any) -> str:
    text = str(key)
    return "".join(one if one.isprintable() else "?" for one in text[:60])


def table(content: Mapping[str, Any], key: str, warnings: list[str]) -> Mapping[str, Any]:
    """The table under ``key``, empty where there is none; anything else becomes a warning."""
    value = content.get(key)
    if isinstance(value, Mapping):
        return value
    if value is not None:
        warnings.append(f"{key} is {show(value)}, not a table; left out")
    return {}


def to_yaml(content: Mapping[str, Any], indent: str = "") -> str:
    """Tables of scalars as YAML; strings are quoted as JSON, which YAML reads."""
    lines = []
    for key, value in content.items():
        if isinstance(value, Mapping):
            lines.append(f"{indent}{key}:\n{to_yaml(value, indent + '  ')}")
        else:
            lines.append(f"{indent}{key}: {json.dumps(value)}\n")
    return "".join(lines)
