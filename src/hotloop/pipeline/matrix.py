"""A training command and a declared grid -> its first configuration's Report with the measurements of the others."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from hotloop.apply import TECHNIQUES, check_strategy
from hotloop.core.errors import UsageError
from hotloop.core.strategy import Strategy
from hotloop.tune.declared import declare_candidates, measure_declared, price_ratios
from hotloop.tune.goals import COST
from hotloop.tune.grid import (
    PRESET,
    Configuration,
    change_command,
    load_grid,
    make_preset,
)
from hotloop.tune.trials import Bench, Ran
from hotloop.tune.tuner import strategy_key
from hotloop.tune.workspace import code_outside, watch

from .tuning import Progress, Request, Trials, TuneError, attach_trial, run_stored, tune_command

Tell = Callable[[str], None]
_ASK = "import importlib.util as u, sys; sys.exit(0 if u.find_spec('deepspeed') else 1)"
ASK_S = 20.0


def load_matrix(name: str, command: Sequence[str]) -> tuple[Configuration, ...]:
    """The configurations of a file, or of the preset for this command. Raises GridError."""
    if name != PRESET:
        return load_grid(name, lambda strategy: check_strategy(strategy, TECHNIQUES))
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
    import shutil

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
            f"--goal cost needs a price: --price-per-hour 12.50, or price_per_hour in the configuration {without[0]!r}"
        )


def measure_matrix(rows: tuple[Configuration, ...], request: Request, progress: Progress, tell: Tell) -> None:
    """Observe the first configuration, measure the others against it. ``progress`` holds the outcome."""
    first = rows[0]
    command, why_not = change_command(request.command, first)
    if why_not:
        raise TuneError(f"the first configuration ({first.name}) cannot be started: {why_not}")
    began = replace(
        request,
        command=command,
        variables={**request.variables, **first.variables},
        price_per_hour=first.price_per_hour or request.price_per_hour,
    )
    progress.reference = first.name
    progress.launches = {row.name: row.launch for row in rows if row.launch}
    tune_command(began, progress, tell, baseline=first.strategy, try_out=partial(_try_rows, rows, request, progress))


def _try_rows(
    rows: tuple[Configuration, ...], request: Request, progress: Progress, trials: Trials, tell: Tell
) -> None:
    campaign = trials.campaign
    if trials.observed.form:
        progress.reference = f"{rows[0].name} ({trials.observed.form})"
    why_not = _not_applied(rows[0], trials)
    if why_not:
        raise TuneError(
            f"the first configuration ({rows[0].name}) does not apply, and all others "
            f"would be held against it: {why_not}"
        )
    known = {row.name: row for row in rows}
    benches: dict[str, Bench] = {}
    for name, row in known.items():
        command, cannot = change_command(request.command, row)
        if cannot:
            known[name] = replace(row, why_not=row.why_not or cannot)
        one = replace(request, command=command, variables={**request.variables, **row.variables})
        benches[name] = replace(trials.bench, command=command, environment=partial(attach_trial, one, deep=False))
    rows = tuple(known.values())
    campaign.run = partial(_run_row, trials, known, benches, rows[0].name)
    campaign.price_ratios = price_ratios(rows, request.price_per_hour)
    candidates = declare_candidates(rows, dict(TECHNIQUES.items()))
    count = sum(not one.why_not for one in candidates)
    tell(f"{count} configurations beside {rows[0].name}, {trials.limits.steps} steps in each process")
    measure_declared(campaign, candidates, rows, [trials.observed])


def _run_row(
    trials: Trials,
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
    is_reference = row.name == first
    return run_stored(
        trials.store, trials.study, key, bench, trials.limits, row.strategy, number, is_reference=is_reference
    )


def _not_applied(row: Configuration, trials: Trials) -> str:
    for choice in row.strategy.choices:
        told = [one for one in trials.observed.applied if one.get("technique") == choice.technique]
        if not any(one.get("status") == "applied" for one in told):
            return next((f"{choice.technique}: {one.get('detail')}" for one in told), f"{choice.technique} met nothing")
    return ""
