"""What goals and declared grids add to the reports: measured arms, words of the goal."""

from __future__ import annotations

from dataclasses import replace

import report_samples as samples

from hotloop.core.findings import Value
from hotloop.core.report import Report
from hotloop.core.tuning import Trial, TrialVerdict, Tuning
from hotloop.show.report import render


def measured(step_ns: float, peak_bytes: float, tokens_per_s: float | None = None) -> dict[str, Value]:
    return {
        "process_count": 4,
        "step_ns": step_ns,
        "steps_per_s": 1e9 / step_ns,
        "samples_per_s": 8e9 / step_ns,
        "tokens_per_s": tokens_per_s,
        "rank_peak_bytes": peak_bytes,
        "peak_bytes": 2 * peak_bytes,
    }


def trial(name: str, verdict: TrialVerdict, ratio: float | None, **more: object) -> Trial:
    one = Trial(id=name, techniques=(name,), settings={}, verdict=verdict, reason="why", n=4, unit="step")
    bounds = {} if ratio is None else {"low_ratio": 0.9 * ratio, "high_ratio": 1.1 * ratio}
    return replace(one, speedup_ratio=ratio, **bounds, **more)  # type: ignore[arg-type]


def tuning(goal: str, **more: object) -> Tuning:
    memory: dict[str, Value] = {"verdict": "smaller", "saving_ratio": 1.5, "low_ratio": 1.4, "high_ratio": 1.6}
    one = Tuning(
        verdict="v",
        goal=goal,
        strategy_file="fast.toml",
        trials=(
            trial("bf16 <b>", TrialVerdict.FASTER, 1.25, measured=measured(8e6, 300 * 2**20), memory=memory),
            trial("fsdp2", TrialVerdict.NOT_APPLICABLE, None),
        ),
        reference=replace(trial("baseline", TrialVerdict.CANNOT_TELL, None), measured=measured(1e7, 450 * 2**20)),
    )
    return replace(one, **more)  # type: ignore[arg-type]


def report(one: Tuning) -> Report:
    return replace(samples.input_bound_report(), tune=one)


def test_the_terminal_says_what_the_goal_judges() -> None:
    text = render("terminal", report(tuning("memory")), width=120, color=False)
    assert "Peak memory relative to baseline" in text
    assert "1.50x smaller (1.40–1.60)" in text
    assert "speed: 1.25x (1.12–1.38) of the baseline" in text
    assert "1,000 samples/s, 1.00 ms per sample, peak 300 MiB" in text
