from dataclasses import replace
from typing import Any

import pytest

from hotloop.core.analysis import Analysis, CompileFacts
from hotloop.core.findings import Finding, Severity, Where
from hotloop.judge.diagnose.rules.recompilation import judge_recompilation

from .build_analysis import Told, check, find, make_analysis, make_excluded, make_rank, saving_of

PLACE = Where(file="train.py", line=12, function="forward")
COMPILED = CompileFacts(used=True, recompiles=5, recompile_reasons=(("size mismatch at index 1", PLACE),))
STEP_NS = 20_000_000


def bursts(steps: list[int], compile_ns: int = 400_000_000) -> dict[str, list[int]]:
    """Every step takes STEP_NS; compiling ones take more, in forward."""
    extra = [compile_ns if step in steps else 0 for step in range(100)]
    return {"compile_ns": extra, "forward_ns": [STEP_NS // 3 + one for one in extra]}


def test_the_noise_that_compiling_makes_does_not_hide_it() -> None:
    one = make_analysis(columns=bursts([50], 4_000_000_000), compile=COMPILED, step_noise_ratio=0.66)
    assert isinstance(judge_recompilation.judge(one), Finding)


def test_compiling_that_has_stopped_is_forecast_lower() -> None:
    going_on = find(judge_recompilation, make_analysis(columns=bursts([5, 30, 60, 95]), compile=COMPILED))
    stopped = find(judge_recompilation, make_analysis(columns=bursts([5, 10, 20, 30]), compile=COMPILED))
    assert saving_of(stopped).low_ratio < saving_of(going_on).low_ratio


def warmed_up(compile_ms: list[int], **fields: Any) -> Analysis:
    """100 steady steps of 20 ms behind warm-up steps that compiled for so long each."""
    compile_ns = [one * 1_000_000 for one in compile_ms]
    warmup_ns = sum(compile_ns) + len(compile_ms) * STEP_NS
    columns = {
        "compile_ns": compile_ns,
        "forward_ns": [STEP_NS // 3] * len(compile_ms),
        "backward_ns": [STEP_NS // 2] * len(compile_ms),
        "samples": [16] * len(compile_ms),
    }
    excluded = make_excluded(warmup_count=len(compile_ms), warmup_ns=warmup_ns, steady_ns=100 * STEP_NS)
    rank = make_rank(**{"compile": COMPILED, "warmup_count": len(compile_ms), **fields})
    return make_analysis(ranks=[replace(rank, excluded=excluded, warmup_columns=columns)])


def test_the_first_compilation_alone_is_the_price_of_compiling() -> None:
    assert judge_recompilation.judge(warmed_up([9_000, 0, 0])) is None
    once = CompileFacts(used=True, recompiles=1)
    assert judge_recompilation.judge(warmed_up([900, 900], compile=once)) is None


def limited(step: int | None) -> CompileFacts:
    return replace(COMPILED, limit_reason="size mismatch", limit_where=PLACE, limit_step=step)


def test_what_is_lost_since_the_limit_is_measured_against_the_compiled_steps_before_it() -> None:
    forward = [3_000_000 + i % 3 * 1_000 for i in range(40)] + [7_000_000 + i % 3 * 1_000 for i in range(60)]
    found = find(judge_recompilation, make_analysis(columns={"forward_ns": forward}, compile=limited(50)))
    assert found.cost_ns == pytest.approx(4_000_000, rel=0.01)
    assert saving_of(found).low_ratio == pytest.approx(saving_of(found).mid_ratio, rel=0.01)


def test_without_compiled_steps_before_the_limit_what_is_lost_since_is_unknown() -> None:
    found = find(judge_recompilation, make_analysis(compile=limited(None)))
    assert "since step" not in found.title
    assert found.evidence["lost_since_ns_per_step"] is None


@pytest.mark.parametrize(
    ("analysis", "told"),
    [
        pytest.param(
            make_analysis(columns=bursts([5, 30, 60, 95]), compile=COMPILED),
            {
                "cost_ratio": pytest.approx(16e6 / 36e6, rel=0.01),
                "severity": Severity.HIGH,
                "where": (PLACE,),
                "fix.technique": "dynamic-shapes",
            },
            id="compiling_all_along_costs_its_share_and_names_the_guard",
        ),
        pytest.param(
            make_analysis(columns=bursts([]), compile=COMPILED), None, id="a_compiled_model_that_settled_is_no_finding"
        ),
        pytest.param(
            make_analysis(columns=bursts([5], 15_000_000), compile=COMPILED),
            None,
            id="a_trace_of_compiling_below_one_percent_is_no_finding",
        ),
        pytest.param(
            warmed_up([900, 300, 300, 0, 300]),
            {
                "base": "run",
                "saving": None,
                "cost_ns": 900_000_000,
                "cost_ratio": pytest.approx(0.9 / 3.9),
                "severity": Severity.MEDIUM,
            },
            id="compiling_again_before_the_steps_are_steady_is_paid_once",
        ),
        pytest.param(
            warmed_up([900, 300, 300], columns=bursts([5, 30, 60, 95])),
            {"base": "steady", "evidence.compile_ns_before_steady": 600_000_000},
            id="compiling_at_the_start_and_later_is_one_finding",
        ),
        pytest.param(
            make_analysis(compile=limited(40)),
            {"severity": Severity.LOW, "evidence.eager_steps": 70},
            id="a_limit_is_told_though_compiling_itself_took_little",
        ),
    ],
)
def test_what_is_told(analysis: Analysis, told: Told) -> None:
    check(judge_recompilation, analysis, told)
