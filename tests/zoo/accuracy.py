"""Results of zoo runs -> the rates that hotloop promises, and docs/accuracy.md. Pure functions."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scenarios import OPPORTUNITY_RULES

from hotloop.diagnose.ranges import upper_end

LOUD = ("high", "medium")
LARGE_SAVING_RATIO = 0.15
FORECAST_ERROR_RATIO = 0.10


@dataclass(frozen=True)
class Said:
    """One finding of a report, as far as the zoo judges it. Savings are fractions of the time per unit."""

    rule: str
    kind: str
    severity: str
    low_ratio: float | None
    mid_ratio: float | None
    high_ratio: float | None


@dataclass(frozen=True)
class Tried:
    """An opportunity that was tried by hand. ``realised_ratio`` None: it could not be tried."""

    rule: str
    low_ratio: float
    realised_ratio: float | None


@dataclass(frozen=True)
class Judged:
    """One finished run of the zoo: what was planted, what was said, what the twin run realised."""

    scenario: str
    level: int
    split: str
    style: str
    planted: tuple[str, ...]
    said: tuple[Said, ...]
    realised_ratio: float | None
    realised_spread_ratio: float | None
    tried: tuple[Tried, ...]
    reach: str
    """What the fault can reach where that is less than the usual strengths, in words."""
    busy: bool
    """The machine had other work when the run began."""

    @property
    def first_of_kind(self) -> str:
        """Rule of the first finding of the planted rule's kind, or ``none``."""
        kind = kind_of(self.planted[0])
        return next((s.rule for s in self.said if s.kind == kind), "none")

    def find(self, rule: str) -> Said | None:
        return next((s for s in self.said if s.rule == rule), None)


@dataclass(frozen=True)
class Rate:
    """``hits`` of ``count``; ``target_ratio`` is what was promised."""

    name: str
    hits: int
    count: int
    target_ratio: float

    @property
    def ratio(self) -> float | None:
        return self.hits / self.count if self.count else None

    @property
    def verdict(self) -> str:
        if self.ratio is None:
            return "no runs"
        return "met" if self.ratio >= self.target_ratio else "missed"


def kind_of(rule: str) -> str:
    return "opportunity" if rule in OPPORTUNITY_RULES else "fault"


def wilson_interval(hits: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a rate (Wilson, 1927); (0, 1) when nothing was counted."""
    if count == 0:
        return 0.0, 1.0
    p = hits / count
    centre = (p + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return max(0.0, centre - half), min(1.0, centre + half)


def realised_saving(fixed: Sequence[float], faulty: Sequence[float]) -> float | None:
    """1 - new/old of the shortest times per unit; None without both."""
    if not fixed or not faulty or min(faulty) <= 0:
        return None
    return 1.0 - min(fixed) / min(faulty)


def realised_spread(fixed: Sequence[float], faulty: Sequence[float]) -> float | None:
    """Distance between the largest and the smallest saving that the two fastest runs of each side give."""
    savings = [1.0 - a / b for a in sorted(fixed)[:2] for b in sorted(faulty)[:2] if b > 0]
    return max(savings) - min(savings) if savings else None


def time_per_unit_ns(report: Mapping[str, Any], unit: str) -> float | None:
    """Time per unit of work in ns as the report states it; None where it does not.

    ``step``: mean steady step. ``useful-step``: the same over the steps that the loss scaler did not skip.
    ``sample`` and ``token``: by units per step when that is the report's unit, else by the report's rate.
    """
    step = report.get("step")
    if not step or not step.get("mean_ns"):
        return None
    mean_ns = float(step["mean_ns"])
    if unit in ("step", "none"):
        return mean_ns
    if unit == "useful-step":
        lead = report["ranks"][0]
        useful_ratio = 1.0 - lead["skipped_steps"] / max(1, lead["steps"])
        return mean_ns / useful_ratio if useful_ratio > 0 else None
    if step.get("unit") == unit and step.get("units_per_step"):
        return mean_ns / float(step["units_per_step"])
    rate = step.get(f"{unit}s_per_s")
    return 1e9 / float(rate) if rate else None


def judge(result: Mapping[str, Any]) -> Judged:
    """A stored result of a finished run as the value that the rates count."""
    twin = result.get("twin") or {}
    times = {side: [r["time_per_unit_ns"] for r in twin.get(side, ())] for side in ("fixed", "faulty")}
    return Judged(
        scenario=result["scenario"],
        level=result["level"],
        split=result["split"],
        style=result["style"],
        planted=tuple(result["rules"]),
        said=tuple(_said(f) for f in result["forecast"]["findings"]),
        realised_ratio=realised_saving(times["fixed"], times["faulty"]),
        realised_spread_ratio=realised_spread(times["fixed"], times["faulty"]),
        tried=tuple(_tried(t) for t in result.get("tried", ())),
        reach=result.get("reach", ""),
        busy=bool(result.get("busy")),
    )


def _said(finding: Mapping[str, Any]) -> Said:
    saving = finding.get("saving") or {}
    return Said(
        rule=finding["rule"],
        kind=finding["kind"],
        severity=finding["severity"],
        low_ratio=saving.get("low_ratio"),
        mid_ratio=saving.get("mid_ratio"),
        high_ratio=saving.get("high_ratio"),
    )


def _tried(entry: Mapping[str, Any]) -> Tried:
    return Tried(
        rule=entry["rule"],
        low_ratio=entry["low_ratio"],
        realised_ratio=realised_saving(entry.get("with_ns") or (), entry.get("without_ns") or ()),
    )


def opportunities_tried(runs: Iterable[Judged]) -> tuple[Tried, ...]:
    """Every opportunity that a report gave as medium or high: the planted one by its twin, others as tried."""
    out = []
    for run in runs:
        for said in run.said:
            if said.kind != "opportunity" or said.severity not in LOUD or said.low_ratio is None:
                continue
            if run.planted == (said.rule,):
                out.append(Tried(said.rule, said.low_ratio, run.realised_ratio))
            else:
                out.extend([t for t in run.tried if t.rule == said.rule] or [Tried(said.rule, said.low_ratio, None)])
    return tuple(out)


def compute_rates(runs: Sequence[Judged]) -> tuple[Rate, ...]:
    """The promised rates, in their usual order."""
    planted = [r for r in runs if len(r.planted) == 1]
    healthy = [r for r in runs if not r.planted]
    pairs = [r for r in runs if len(r.planted) > 1]
    right = [r for r in planted if r.first_of_kind == r.planted[0]]
    quiet = [r for r in healthy if not false_alarms(r)]
    tried = [t for t in opportunities_tried(runs) if t.realised_ratio is not None]
    won = [t for t in tried if (t.realised_ratio or 0.0) >= 0.5 * t.low_ratio]
    both = [r for r in pairs if all(r.find(rule) for rule in r.planted)]
    large = large_faults(planted)
    near = [r for r in large if _error(r) is not None and abs(_error(r) or 0.0) <= FORECAST_ERROR_RATIO]
    return (
        Rate("the first finding of the planted rule's kind is the planted one", len(right), len(planted), 0.95),
        Rate("healthy runs without a fault of severity high or medium", len(quiet), len(healthy), 0.95),
        Rate("opportunities reported as medium or high that won at least half of their low forecast, of those tried",
             len(won), len(tried), 0.90),
        Rate("runs with two faults in which both are named", len(both), len(pairs), 1.0),
        Rate("faults with a realised saving of 0.15 or more whose forecast is within 0.10 of it", len(near), len(large),
             0.80),
    )  # fmt: skip


def large_faults(planted: Iterable[Judged]) -> list[Judged]:
    """Runs with one planted fault (no opportunity) whose twin realised 0.15 or more; an unnamed one will be a miss."""
    return [
        r
        for r in planted
        if kind_of(r.planted[0]) == "fault" and r.realised_ratio is not None and r.realised_ratio >= LARGE_SAVING_RATIO
    ]


def false_alarms(run: Judged) -> tuple[Said, ...]:
    return tuple(s for s in run.said if s.kind == "fault" and s.severity in LOUD)


def _error(run: Judged) -> float | None:
    said = run.find(run.planted[0])
    if said is None or said.mid_ratio is None or run.realised_ratio is None:
        return None
    return said.mid_ratio - run.realised_ratio


def write_accuracy(
    results: Sequence[Mapping[str, Any]],
    expected: Sequence[tuple[str, str, int]],
    *,
    commit: str,
    pairs: Mapping[str, Any] | None = None,
) -> str:
    """The text of docs/accuracy.md. ``expected`` holds (split, scenario, level) of every run that should be there,
    ``pairs`` the results of benchmarks/what_if_pairs.py."""
    done = {(r["split"], r["scenario"], r["level"]): r for r in results if r["status"] == "done"}
    failed = {(r["split"], r["scenario"], r["level"]): r for r in results if r["status"] == "failed"}
    runs = [judge(done[key]) for key in sorted(done)]
    out = ["# Accuracy of the diagnosis", "", _preamble(list(done.values()), commit), ""]
    splits = [
        ("tuned", "scripts known while thresholds were set"),
        ("blind", "scripts written from the rules' titles alone"),
    ]
    for split, meaning in splits:
        part = [r for r in runs if r.split == split]
        out += [f"## {split.capitalize()}: {meaning}", ""]
        out += _rates_table(part) if part else ["No finished runs.", ""]
        if part:
            out += _sections(part)
    if pairs is not None:
        out += _pairs_section(pairs)
    out += _missing_section([key for key in expected if key not in done], failed)
    return "\n".join(out).rstrip() + "\n"


def _pairs_section(pairs: Mapping[str, Any]) -> list[str]:
    """Forecasts from a trace alone, beside the trace of the same training with the fix."""
    rows = pairs["pairs"]
    errors = [row["forecast_saving_ratio"] - row["realised_saving_ratio"] for row in rows]
    near = sum(abs(error) <= FORECAST_ERROR_RATIO for error in errors)
    unseen = [error for row, error in zip(rows, errors, strict=True) if row.get("blind")]
    unseen_near = sum(abs(error) <= FORECAST_ERROR_RATIO for error in unseen)
    apart = f" Of the pairs written after the model: {unseen_near} of {len(unseen)}." if unseen else ""
    machine = pairs["machine"]
    out = [
        "## What-if: traces before and after a fix",
        "",
        f"Measured {pairs['date']}, commit {pairs['commit']}, {machine['cores']} cores, torch {machine['torch']}; "
        f"fastest of {pairs['repeats']} traces a side, interleaved. Within 0.10: {near} of {len(rows)} "
        f"({near / max(1, len(rows)):.0%}; promised 80%).{apart} Made by `make what-if`.",
        "",
        "| pair | fix | change of the graph | basis | forecast | realised | error |",
        "|---|---|---|---|---|---|---|",
    ]
    for row, error in zip(rows, errors, strict=True):
        change = row["change"] + ("" if row["value"] is None else f" {row['value']}")
        figures = (_number(row["forecast_saving_ratio"]), _number(row["realised_saving_ratio"]), f"{error:+.2f}")
        pair = row["pair"] + (" (blind)" if row.get("blind") else "")
        out.append(_row((pair, f"`{row['fix']}`", change, row["basis"], *figures)))
    return [*out, ""]


def _preamble(done: Sequence[Mapping[str, Any]], commit: str) -> str:
    if not done:
        return f"Commit {commit}: no finished runs."
    days = sorted(r["date"][:10] for r in done)
    machines = sorted({_machine_words(r["machine"]) for r in done})
    busy = sum(bool(r.get("busy")) for r in done)
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    twins = (
        "Every forecast was stored before its twin was run. Realised = 1 - fixed/faulty of each side's fastest run, "
        "interleaved, 2 to 5 runs a side until the two fastest of each differ by less than 4 %, all under `hotloop run "
        "--no-probe --no-deep`. The spread is over the two fastest."
    )
    if not any(r.get("twin") for r in done):
        twins = "The diagnosis alone: no twin was run (`--no-twin`), so nothing is known of realised savings."
    lines = [
        f"Measured {when}, commit {commit}, on {'; '.join(machines)}.",
        f"{len(done)} runs, in {busy} of which other programs used more than a tenth of the cores' time.",
        f"{twins} Intervals are Wilson's, 95 %.",
        "Made by `make zoo`.",
    ]
    return "\n".join(lines)


def _machine_words(machine: Mapping[str, Any]) -> str:
    versions = f"Python {machine['python']}, torch {machine['torch']}, hotloop {machine['hotloop']}"
    return f"{machine['cpu']}, {machine['cores']} cores, {versions}"


def _rates_table(runs: Sequence[Judged]) -> list[str]:
    out = ["| what | hits | n | rate | 95 % interval | promised | |", "|---|---|---|---|---|---|---|"]
    for rate in compute_rates(runs):
        low, high = wilson_interval(rate.hits, rate.count)
        interval = f"{low:.0%} to {high:.0%}" if rate.count else "-"
        shown = "-" if rate.ratio is None else f"{rate.ratio:.1%}"
        cells = (rate.name, rate.hits, rate.count, shown, interval, f"{rate.target_ratio:.0%}", rate.verdict)
        out.append(_row(cells))
    untried = sum(t.realised_ratio is None for t in opportunities_tried(runs))
    out += ["", f"Opportunities reported as medium or high that nobody could try: {untried}.", ""]
    return out


def _sections(runs: Sequence[Judged]) -> list[str]:
    planted = [r for r in runs if len(r.planted) == 1]
    healthy = [r for r in runs if not r.planted]
    pairs = [r for r in runs if len(r.planted) > 1]
    return [
        *(_confusion(planted) if planted else ()),
        *(_forecasts(planted) if planted else ()),
        *(_pairs(pairs) if pairs else ()),
        *(_healthy(healthy) if healthy else ()),
        *_opportunities(runs),
    ]


def _confusion(planted: Sequence[Judged]) -> list[str]:
    counts = Counter((r.planted[0], r.first_of_kind) for r in planted)
    totals = Counter(r.planted[0] for r in planted)
    out = [
        "### Planted rule and first finding of its kind",
        "",
        "| planted | runs | right | others |",
        "|---|---|---|---|",
    ]
    for rule in sorted(totals):
        others = [f"{said} {n}" for (was, said), n in sorted(counts.items()) if was == rule and said != rule]
        out.append(f"| {rule} | {totals[rule]} | {counts[rule, rule]} | {', '.join(others) or '-'} |")
    return [*out, ""]


def _forecasts(planted: Sequence[Judged]) -> list[str]:
    numbers = ("low", "mid", "high", "realised", "its spread", "error")
    head = ("scenario", "level", "style", "planted", "first of its kind", "severity", *numbers)
    out = ["### Forecast and realised saving", "", _row(head), _row(["---"] * len(head))]
    for r in planted:
        said = r.find(r.planted[0])
        forecast = (said.low_ratio, said.mid_ratio, said.high_ratio) if said else (None, None, None)
        cells = [_number(n) for n in (*forecast, r.realised_ratio, r.realised_spread_ratio, _error(r))]
        severity = said.severity if said else "-"
        out.append(_row((r.scenario, r.level, r.style, r.planted[0], r.first_of_kind, severity, *cells)))
    reaches = dict.fromkeys(f"- {r.scenario}: {r.reach}" for r in planted if r.reach)
    if reaches:
        out += ["", "Faults that cannot reach the usual strengths of 0.15, 0.3 and 0.6:", "", *reaches]
    return [*out, "", *_ranges(planted)]


def _ranges(planted: Sequence[Judged]) -> list[str]:
    """How many realised savings the ranges held: as the reports gave them, and with the upper end that is given now."""
    told = []
    for r in planted:
        said = r.find(r.planted[0])
        if r.realised_ratio is None or said is None or said.low_ratio is None:
            continue
        assert said.mid_ratio is not None
        assert said.high_ratio is not None
        now_ratio = upper_end(said.mid_ratio, said.high_ratio)
        told.append((r.realised_ratio, said.low_ratio, said.high_ratio, now_ratio))
    if not told:
        return []
    then = sum(low <= realised <= high for realised, low, high, _ in told)
    now = sum(low <= realised <= high for realised, low, _, high in told)
    return [
        f"Of {len(told)} realised savings {then} lie in the range that the report gave (median width "
        f"{statistics.median(high - low for _, low, high, _ in told):.2f}), {now} where the upper end is the one that "
        f"is told now ({statistics.median(high - low for _, low, _, high in told):.2f}; hotloop/diagnose/ranges.py).",
        "",
    ]


def _pairs(pairs: Sequence[Judged]) -> list[str]:
    out = [
        "### Two faults at once",
        "",
        "| scenario | level | planted | named | realised together |",
        "|---|---|---|---|---|",
    ]
    for r in pairs:
        named = [rule for rule in r.planted if r.find(rule)]
        together = _number(r.realised_ratio)
        out.append(_row((r.scenario, r.level, " and ".join(r.planted), " and ".join(named) or "none", together)))
    return [*out, ""]


def _healthy(healthy: Sequence[Judged]) -> list[str]:
    out = [
        "### Healthy trainings",
        "",
        "| scenario | style | faults of severity high or medium | anything else |",
        "|---|---|---|---|",
    ]
    for r in healthy:
        alarms = false_alarms(r)
        rest = [s for s in r.said if s not in alarms]
        out.append(f"| {r.scenario} | {r.style} | {_names(alarms) or 'none'} | {_names(rest) or '-'} |")
    return [*out, ""]


def _opportunities(runs: Sequence[Judged]) -> list[str]:
    tried = opportunities_tried(runs)
    if not tried:
        return []
    out = [
        "### Opportunities reported as medium or high, tried by hand",
        "",
        "| rule | low forecast | realised |",
        "|---|---|---|",
    ]
    out += [f"| {t.rule} | {_number(t.low_ratio)} | {_number(t.realised_ratio)} |" for t in tried]
    return [*out, ""]


def _missing_section(
    missing: Sequence[tuple[str, str, int]], failed: Mapping[tuple[str, str, int], Mapping[str, Any]]
) -> list[str]:
    out = ["## Missing runs", ""]
    if not missing:
        return [*out, "None.", ""]
    for key in missing:
        reason = failed[key]["reason"] if key in failed else "not run"
        out.append(f"- {key[0]} {key[1]} level {key[2]}: {reason}")
    return [*out, ""]


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _names(said: Sequence[Said]) -> str:
    return ", ".join(f"{s.rule} ({s.severity})" for s in said)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
