"""What the parsers are told beside the file: what the user knows, and what other files of the run say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A job starts a script and warns it by a signal. ``is_asked`` where the job's file asks for that signal itself."""

    file: str
    line: int
    signal: str
    when: str
    is_asked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """``save_s`` is how long a checkpoint takes, if that is known; ``starts`` are by the path of the script."""

    save_s: float | None = None
    starts: Mapping[str, Start] = field(default_factory=dict)
