"""The limits file of ``hotloop check`` (TOML) -> CheckLimits."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hotloop.core.errors import UsageError

from .check import BUDGETS, CheckLimits

LIMITS_SCHEMA = "hotloop.limits/1"


def load_limits(path: Path) -> CheckLimits:
    """Read a limits file (TOML). Raises UsageError with the key and what it should be."""
    try:
        with path.open("rb") as file:
            text = file.read(1 << 20).decode("utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot read the limits: {error.strerror}; give the path of a TOML file") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: byte {error.start} is not UTF-8; limits must be a TOML file") from None
    return parse_limits(text, source=str(path))


def parse_limits(text: str, *, source: str = "limits") -> CheckLimits:
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source}: not TOML: {error}") from None
    if content.get("schema") != LIMITS_SCHEMA:
        raise UsageError(
            f'{source}: schema is {content.get("schema")!r}; the first line must be: schema = "{LIMITS_SCHEMA}"'
        )
    _refuse_unknown(source, "", content, ("schema", "tolerance", "noise", "budget"))
    tolerance = _table(source, content, "tolerance", ("step_ratio", "phase_ratio", "memory_ratio"))
    noise = _table(source, content, "noise", ("launch_ratio",))
    budgets = _table(source, content, "budget", tuple(BUDGETS))
    return CheckLimits(**tolerance, launch_noise_ratio=noise.get("launch_ratio"), budgets=budgets)


def _table(source: str, content: Mapping[str, Any], table: str, known: Sequence[str]) -> dict[str, float]:
    found = content.get(table, {})
    if not isinstance(found, dict):
        raise UsageError(f"{source}: {table} is {found!r}; write a table: [{table}]")
    _refuse_unknown(source, f"{table}.", found, known)
    for key, value in found.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e300:
            raise UsageError(f"{source}: {table}.{key} is {value!r}; write a number of at least 0")
    return {key: float(value) for key, value in found.items()}


def _refuse_unknown(source: str, prefix: str, found: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in found:
        if key not in known:
            raise UsageError(f"{source}: unknown key {prefix}{key}; known: {', '.join(known)}")
