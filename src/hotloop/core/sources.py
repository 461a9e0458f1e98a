"""Source: code of a training script that does the same as a technique, declared in the technique's file.

``names`` and ``value`` are names of ``Applied.values``, which hold what was set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenArgument:
    """An argument that holds code, not a value. ``code`` has a ``{}`` in place of the value."""

    name: str
    code: str
    module: str
    """Module that the script must import for it."""
    why_not: str
    """What to report if it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Keyword arguments of the call that builds the object, with the same names as the values."""

    names: tuple[str, ...]
    most_positional: int = 5
    """More positional arguments than this may already hold one of the names."""
    excludes: str | None = None
    """The argument that torch refuses together with these."""
    written: Mapping[str, WrittenArgument] = field(default_factory=dict)
    """By the value's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchCall:
    """One call on torch with one value for the whole process: ``torch.set_num_threads(2)``."""

    function: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCompile:
    """``model.compile(mode='default')`` after the line that builds the model."""

    names: tuple[str, ...]
    """Values that become keyword arguments; those that are None are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelContext:
    """A context around the model's call: ``with torch.autocast("cpu", dtype=torch.bfloat16):``. The model's output is
    then cast to float32."""

    context: str
    """As code, with the values in braces."""
    value: str
    """The value that must be known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapped:
    """A call of hotloop around the call that builds the object: ``hotloop.group_by_length(DataLoader(...))``."""

    function: str
    names: tuple[str, ...]
    """Settings that become keyword arguments; those that are None are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSource:
    """Nothing could be written at a line that was observed."""

    why: str = ""
    """Empty if nothing of its kind is written."""


Source = Arguments | TorchCall | ModelCompile | ModelContext | Wrapped | NoSource
