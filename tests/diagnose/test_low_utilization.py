"""low-utilization: a target missed or a band, with causes that add up to what is missing, and no time of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Finding, Severity, Skipped
from hotloop.core.utilization import Utilization
from hotloop.judge.diagnose import find_problems
from hotloop.judge.diagnose.completion import combine_savings, complete_findings
from hotloop.judge.diagnose.rules.low_utilization import NARROW, UNTOLD, low_utilization, rank_causes

from .build_analysis import make_analysis


def judged(analysis: Analysis) -> tuple[Finding | Skipped, ...]:
    answer = low_utilization.judge(analysis)
    assert isinstance(answer, tuple)
    return answer


def on_gpu(ratio: float | None, targets: dict[str, float] | None = None, **shares: Any) -> Analysis:
    analysis = make_analysis(device_type="cuda", **shares)
    used = Utilization(utilization_ratio=ratio, unknown={} if ratio is not None else {"utilization_ratio": "no NVML"})
    return replace(analysis, accelerator=True, utilization=used, targets=targets or {})


def test_a_missed_target_names_its_causes_largest_first() -> None:
    (finding,) = judged(on_gpu(0.55, {"utilization": 0.8}, input_wait=0.30, other=0.10))
    assert isinstance(finding, Finding)
    assert finding.severity is Severity.MEDIUM
    causes = finding.evidence["causes_ratio"]
    assert causes == {"waiting for input": 0.3, "the host outside of the model": 0.1, UNTOLD: 0.05}
    assert isinstance(causes, dict)
    assert list(causes) == ["waiting for input", "the host outside of the model", UNTOLD]


@pytest.mark.parametrize(
    ("ratio", "targets", "found"),
    [
        (0.49, {}, 1),
        (0.51, {}, 0),
        (0.79, {"utilization": 0.8}, 1),
        (0.8, {"utilization": 0.8}, 0),
        (0.45, {"utilization": 0.4}, 0),  # the user's own target stands in place of the band
    ],
)
def test_bands_and_targets(ratio: float, targets: dict[str, float], found: int) -> None:
    answers = judged(on_gpu(ratio, targets, input_wait=0.3))
    assert sum(isinstance(one, Finding) for one in answers) == found
    if found and not targets:
        assert isinstance(answers[0], Finding)
        assert answers[0].severity is Severity.LOW


def test_nothing_is_invented_where_nothing_was_measured() -> None:
    (skipped,) = judged(on_gpu(None, {"utilization": 0.8}))
    assert isinstance(skipped, Skipped)
    cpu = replace(
        make_analysis(), utilization=Utilization(unknown={"utilization_ratio": "training ran on the CPU: none"})
    )
    (skipped,) = judged(cpu)
    assert isinstance(skipped, Skipped)


def test_the_cores_of_a_cpu_are_judged_by_a_target_alone() -> None:
    analysis = make_analysis(input_wait=0.2, cores=4, torch_threads=2)
    analysis = replace(analysis, utilization=Utilization(cpu_utilization_ratio=0.4))
    assert not [one for one in judged(analysis) if isinstance(one, Finding)]
    finding = judged(replace(analysis, targets={"cpu_utilization": 0.9}))[0]
    assert isinstance(finding, Finding)
    assert finding.evidence["causes_ratio"] == {"fewer compute threads than cores": 0.5, "waiting for input": 0.1}
    used = Utilization(cpu_utilization_ratio=0.4, cpu_others_ratio=0.3)
    finding = judged(replace(make_analysis(cores=2), utilization=used, targets={"cpu_utilization": 0.9}))[0]
    assert isinstance(finding, Finding)
    assert finding.evidence["causes_ratio"] == {"other programs on the same cores": 0.3, NARROW: 0.3}


def test_mfu_counts_what_the_device_computes_slowly() -> None:
    used = Utilization(utilization_ratio=0.95, mfu_ratio=0.2, flops_per_step=1e12, peak_flops_per_s=1e15, peak="x")
    analysis = replace(on_gpu(0.95, {"mfu": 0.4}, input_wait=0.1), utilization=used)
    (finding,) = judged(analysis)
    assert isinstance(finding, Finding)
    assert (finding.evidence["counted_flops"], finding.evidence["peak"]) == (1e12, "x")


def test_a_kernel_timeline_tells_the_causes_in_place_of_host_phases() -> None:
    analysis = replace(on_gpu(0.4, input_wait=0.5), waits={"launch": 0.45, "input_wait": 0.1})
    (finding,) = judged(analysis)
    assert isinstance(finding, Finding)
    assert finding.evidence["causes_ratio"] == {
        "launches that come late": 0.45,
        "waiting for input": 0.1,
        UNTOLD: 0.05,
    }


def test_causes_never_exceed_what_is_missing() -> None:
    shares = {"input_wait": 0.4, "communication": 0.3, "h2d": 0.2, "launch": 0.6}
    for field in ("utilization_ratio", "busy_ratio", "mfu_ratio"):
        causes = rank_causes(0.5, field, shares)
        assert sum(causes.values()) == pytest.approx(0.5)
    assert "communication that no computation hides" not in rank_causes(0.9, "busy_ratio", shares), "kernels are work"


def test_it_owns_no_time_and_stands_behind_what_does() -> None:
    analysis = on_gpu(0.3, {"utilization": 0.8}, input_wait=0.5)
    found, _ = find_problems(analysis)
    ranked, combined = complete_findings(found, {})
    names = [one.rule for one in ranked]
    assert names.index("input-bound") < names.index("low-utilization")
    (own,) = (one for one in ranked if one.rule == "low-utilization")
    assert (own.cost_ns, own.saving, own.time_ns) == (None, None, None)
    assert own.evidence["see"] == {"waiting for input": "input-bound"}
    without = tuple(one for one in ranked if one is not own)
    assert combined == combine_savings(without)
