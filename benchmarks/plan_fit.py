"""The constants of plan/efficiency.toml, fitted on few published rows (plan_accuracy.py).

Relative least squares: the squares of log(predicted / published time), by Gauss-Newton steps on the logarithms of the
constants, each held near a starting value by a weak square of its own. Two rows of five of llm-foundry are fitted, and
one to six of other sources; benchmarks/plan_accuracy.py fits again without each family and without each kind of device.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from passes import ROOT
from published_rows import Row

from hotloop.ahead.plan.hardware_files import Efficiency
from hotloop.ahead.plan.time import predict_step

FILE = ROOT / "src" / "hotloop" / "ahead" / "plan" / "efficiency.toml"
STARTS: dict[str, dict[str, float]] = {
    "all": {
        "idle_outputs": 1e6,
        "backward_ratio": 1.1,
        "eager_passes": 2.0,
        "compiled_passes": 1.0,
        "megatron_passes": 1.0,
        "megatron_host_ns": 1e6,
        "step_host_ns": 10e6,
        "contention_ratio": 0.2,
        "hop_ratio": 1.0,
    },
    "a100": {"product_ratio": 0.87, "attention_ratio": 0.35},
    "h100": {"product_ratio": 0.80, "fp8_ratio": 0.71, "attention_ratio": 0.2, "megatron_attention_ratio": 0.5},
    "b200": {"idle_outputs": 2e6, "product_ratio": 0.70, "megatron_attention_ratio": 0.45},
    "gb300": {"fp8_ratio": 0.65},
    "pcie": {"inside_ratio": 0.7},
}
"""Where the fit starts. Product ratios of A100 and H100: the greatest measured of any shape (stas00/ml-engineering,
MAMF: 271.2 of 312, 794.5 of 989.5 and 1402.6 of 1979 TFLOP/s)."""
FIXED = {"inside_ratio": 1.0, "memory_ratio": 0.85, "host_ns": 300e3, "between_ratio": 0.9}
OTHER = {"product_ratio": 0.75, "fp8_ratio": 0.65, "attention_ratio": 0.25, "megatron_attention_ratio": 0.45}
"""Of devices without rows."""
CPU = {"idle_outputs": 0.0, "host_ns": 0.0, "step_host_ns": 0.0, "product_ratio": 0.9, "attention_ratio": 0.3}
"""A core has no waves of tiles, and nothing launches its work ahead of it."""
MEANINGS = {
    "inside_ratio": "not fitted: the links' figures are those of rings",
    "memory_ratio": "not fitted: what a plain copy reaches",
    "host_ns": "not fitted: about 30 launches of 10 us",
    "between_ratio": "not fitted: protocol and headers",
}
HOLD = 0.1
"""Weight of a constant's distance from its start, relative to a row's."""
FIRM = {"product_ratio": 0.5, "fp8_ratio": 0.3, "backward_ratio": 1.0}
SOURCE_LIMIT = 10
"""A source with more rows counts as much as one with so many."""
"""The same of constants that were measured by themselves."""
STEPS = 8
ALIKE = {"h200": "h100", "h100": "h100", "a100": "a100", "b200": "b200", "gb200": "b200", "gb300": "b200"}
"""Devices with the cores of another one: their name's beginning -> the kind in efficiency.toml."""

Constants = dict[str, dict[str, float]]


def kind_of(row: Row) -> str:
    """Whose cores the row's device has."""
    return next((kind for word in words(row) if (kind := ALIKE.get(word))), "other")


def words(row: Row) -> list[str]:
    return re.split(r"[^a-z0-9]+", row.hardware.name.lower())


def tables_of(row: Row) -> tuple[str, ...]:
    """The tables of constants that hold for the row's device, as ``read_efficiency`` picks them."""
    return tuple(sorted({kind_of(row), *words(row)} & STARTS.keys()))


def pick_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows that are fitted: every so many of a source, which is stated in the file of constants."""
    every = {
        "llm-foundry": 5, "llm-foundry fp8": 3, "korthikanti": 4, "vtrain multi-node": 12, "vtrain single-node": 40,
        "simumax b200": 4, "simumax a100-80g-pcie": 6, "megatron-bridge": 6, "nemo": 4, "fms-fsdp": 3,
        "torchtitan": 6, "torchao": 4,
    }  # fmt: skip
    seen: dict[str, int] = {}
    picked = []
    for row in unique(rows):
        if kind_of(row) == "b200" and row.workload.run.framework == "torch":
            # Their cards were power-limited by more than the page says.
            continue
        index = seen[row.group] = seen.get(row.group, -1) + 1
        step = every.get(row.group)
        if step and (index % step == step // 2 or (row.group == "llm-foundry" and index % step == 0)):
            picked.append(row)
    return picked


def unique(rows: Sequence[Row]) -> list[Row]:
    """One row a run: a page that prints throughput and MFU of one run counts once."""
    seen: set[tuple[str, str]] = set()
    kept = []
    for row in rows:
        key = (row.source, repr(row.workload))
        if key not in seen:
            seen.add(key)
            kept.append(row)
    return kept


def efficiency(constants: Constants, tables: Sequence[str]) -> Efficiency:
    values = {**FIXED, **OTHER, **constants["all"]}
    for table in tables:
        values |= constants.get(table, {})
    return Efficiency(**values, error_ratio=0.1, megatron_error_ratio=0.1)


def residuals(rows: Sequence[Row], constants: Constants) -> np.ndarray:
    """log(predicted / published time) of every row."""
    made: dict[tuple[str, ...], Efficiency] = {}
    found = []
    for row in rows:
        kind = tables_of(row)
        if kind not in made:
            made[kind] = efficiency(constants, kind)
        found.append(math.log(row.time_ratio(predict_step(row.workload, row.hardware, made[kind]))))
    return np.array(found)


def fit(rows: Sequence[Row]) -> Constants:
    """The constants that these rows show; kinds of devices without rows keep those of devices in general."""
    kinds = {table for row in rows for table in tables_of(row)}
    names = [(table, name) for table, values in STARTS.items() if table == "all" or table in kinds for name in values]
    sizes = Counter(row.group for row in rows)
    weights = np.array([min(1.0, math.sqrt(SOURCE_LIMIT / sizes[row.group])) for row in rows])
    holds = np.array([FIRM.get(name, HOLD) for _, name in names])
    start = np.log([STARTS[table][name] for table, name in names])

    def unpack(logs: np.ndarray) -> Constants:
        made: Constants = {"all": {}}
        for (table, name), value in zip(names, np.exp(logs), strict=True):
            made.setdefault(table, {})[name] = float(value)
        return made

    def errors(logs: np.ndarray) -> np.ndarray:
        return np.concatenate([weights * residuals(rows, unpack(logs)), holds * (logs - start)])

    logs, damping = start, 1e-3
    now = errors(logs)
    for _ in range(STEPS):
        slopes = np.stack([(errors(logs + 1e-3 * row) - now) / 1e-3 for row in np.eye(len(logs))], axis=1)
        step = np.linalg.solve(slopes.T @ slopes + damping * np.eye(len(logs)), -slopes.T @ now)
        tried = logs + np.clip(step, -0.5, 0.5)
        then = errors(tried)
        if then @ then < now @ now:
            logs, now, damping = tried, then, damping / 3
        else:
            damping *= 10
    return unpack(logs)


def draw(constants: Constants, rows: Sequence[Row], errors: Mapping[str, Mapping[str, float]]) -> str:
    """The file of constants, each with the rows that it was fitted on."""
    sets = {"all": count_rows(rows)}
    for table in sorted(STARTS.keys() - {"all"}):
        sets[table] = count_rows([row for row in rows if table in tables_of(row)])
    lines = [
        "# Written by `make plan-accuracy`. The rows are those of benchmarks/published, chosen by plan_fit.py.",
        "",
        "# What a constant was fitted on, by the name next to it: sources and how many rows of each.",
        "[rows]",
        *(f'{name} = "{counts}"' for name, counts in sets.items()),
        "",
        "[all]",
    ]
    lines += [_constant(name, value, MEANINGS[name]) for name, value in FIXED.items()]
    lines += [_constant(name, value, "all") for name, value in constants["all"].items()]
    lines += ["", "# Devices without rows: between what the others reach.", "[devices.other]"]
    lines += [_constant(name, value, "not fitted") for name, value in OTHER.items()]
    lines += ["", "# A core has no waves of tiles, and nothing launches its work ahead of it.", "[devices.cpu]"]
    lines += [_constant(name, value, "not fitted") for name, value in CPU.items()]
    for name in (*ALIKE, *sorted(STARTS.keys() - ALIKE.keys() - {"all"})):
        lines += ["", f"[devices.{name}]"]
        for table in dict.fromkeys((ALIKE.get(name, name), name)):
            lines += [_constant(key, value, table) for key, value in constants.get(table, {}).items()]
    lines += [
        "",
        "# Half-width of the stated range: at least four fifths of the rows that were not fitted lie inside it",
        "# (docs/plan-accuracy.md). other: devices whose whole kind was left out of the fit.",
    ]
    for kind, values in errors.items():
        lines += [f"[errors.{kind}]", *(f"{name} = {value:.2f}" for name, value in values.items()), ""]
    return "\n".join(lines).rstrip() + "\n"


def count_rows(rows: Sequence[Row]) -> str:
    counts = Counter(row.group for row in rows)
    return ", ".join(f"{group} {count}" for group, count in sorted(counts.items()))


def _constant(name: str, value: float, rows: str) -> str:
    return f'{name} = {{ value = {float(f"{value:.3g}"):.10g}, fitted_on = "{rows}" }}'
