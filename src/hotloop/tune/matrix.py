"""A declared grid and a command -> every configuration as a candidate that is measured against the first one."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from hotloop.core.errors import UsageError
from hotloop.core.strategy import Strategy

from .attempt import TuningAttempt
from .declared import declare_candidates, measure_declared, price_ratios
from .goals import COST
from .grid import PRESET, Configuration, change_command, load_grid, make_preset
from .request import Progress, Request, TuneError
from .search import Check
from .study import Study
from .trials import Bench, Ran
from .tuner import strategy_key
from .workspace import code_outside, watch

_ASK = "import importlib.util as u, sys; sys.exit(0 if u.find_spec('deepspeed') else 1)"
ASK_S = 20.0


def load_matrix(name: str, command: Sequence[str], check: Check) -> tuple[Configuration, ...]:
    """The configurations of a file, or of the preset for this command. Raises GridError."""
    if name != PRESET:
        return load_grid(name, check)
    return make_preset(has_deepspeed=has_deepspeed(command))


def has_deepspeed(command: Sequence[str]) -> bool:
    """Whether the Python that the command starts has DeepSpeed; False where that Python cannot be told."""
    python = find_interpreter(command)
    if python is None:
        return False
    try:
        return subprocess.run([python, "-c", _ASK], timeout=ASK_S, check=False, capture_output=True).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def find_interpreter(command: Sequence[str]) -> str | None:
    """The Python that a command starts: its first word, or what the first line of that script names.

    >>> find_interpreter(("/usr/bin/python3", "train.py"))
    '/usr/bin/python3'
    """
    first = command[0]
    if Path(first).name.startswith("python"):
        return first
    path = shutil.which(first)
    try:
        with open(path or first, "rb") as file:
            line = file.readline(512)
    except OSError:
        return None
    words = line[2:].decode("utf-8", "replace").split() if line.startswith(b"#!") else []
    return words[0] if words and Path(words[0]).name.startswith("python") else None


def check_prices(rows: Sequence[Configuration], goal: str, price_per_hour: float | None) -> None:
    """Raises UsageError unless the goal cost has a price for every configuration."""
    without = [row.name for row in rows if row.price_per_hour is None]
    if goal == COST and price_per_hour is None and without:
        raise UsageError(
            "--goal cost needs a price; give --price-per-hour 12.50, or price_per_hour in the configuration "
            f"{without[0]!r}"
        )


def begin_with_first(rows: Sequence[Configuration], request: Request, progress: Progress) -> Request:
    """The request for the first configuration, which all others are held against. Raises TuneError."""
    first = rows[0]
    command, why_not = change_command(request.command, first)
    if why_not:
        raise TuneError(f"the first configuration ({first.name}) cannot be started: {why_not}")
    progress.reference = first.name
    progress.launches = {row.name: row.launch for row in rows if row.launch}
    return replace(
        request,
        command=command,
        variables={**request.variables, **first.variables},
        price_per_hour=first.price_per_hour or request.price_per_hour,
    )


def try_rows(rows: tuple[Configuration, ...], request: Request, progress: Progress, attempt: TuningAttempt) -> None:
    """Measure the other configurations against the first one. Raises TuneError where that one does not apply."""
    campaign, study, first = attempt.campaign, attempt.study, rows[0]
    if attempt.observed.form:
        progress.reference = f"{first.name} ({attempt.observed.form})"
    why_not = _not_applied(first, attempt)
    if why_not:
        raise TuneError(
            f"the first configuration ({first.name}) is the reference for all others, but cannot be applied: {why_not}"
        )
    known: dict[str, Configuration] = {}
    benches: dict[str, Bench] = {}
    for row in rows:
        command, cannot = change_command(request.command, row)
        known[row.name] = replace(row, why_not=row.why_not or cannot)
        one = replace(request, command=command, variables={**request.variables, **row.variables})
        benches[row.name] = replace(study.bench, command=command, environment=attempt.attach(one))
    campaign.run = partial(_run_row, study, known, benches, first.name)
    campaign.price_ratios = price_ratios(rows, request.price_per_hour)
    candidates = declare_candidates(tuple(known.values()), attempt.techniques)
    count = sum(not one.why_not for one in candidates)
    campaign.emit(f"{count} configurations to compare with {first.name}, {study.limits.steps} steps in each process")
    measure_declared(campaign, candidates, tuple(known.values()), [attempt.observed])


def _run_row(
    study: Study,
    rows: Mapping[str, Configuration],
    benches: Mapping[str, Bench],
    first: str,
    strategy: Strategy,
    number: int,
) -> Ran:
    """One process of a configuration, which its strategy names; that of the first one where it names none."""
    row = rows[strategy.name or first]
    bench = benches[row.name]
    # Its own arguments may name code outside the folder: that of the first configuration is in the study.
    named = [(str(one.path), one.digest) for one in watch(code_outside(bench.command, bench.plan.source))]
    described = json.dumps([row.name, row.launch, named], sort_keys=True)
    key = hashlib.sha256(f"{strategy_key(row.strategy)} {described}".encode()).hexdigest()[:16]
    return study.run(key, bench, row.strategy, number, is_reference=row.name == first)


def _not_applied(row: Configuration, attempt: TuningAttempt) -> str:
    for choice in row.strategy.choices:
        records = [one for one in attempt.observed.applied if one.technique == choice.technique]
        if not any(one.is_applied for one in records):
            return next(
                (f"{choice.technique}: {one.detail}" for one in records), f"{choice.technique} found nothing to change"
            )
    return ""
