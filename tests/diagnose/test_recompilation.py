import pytest

from hotloop.core.analysis import CompileFacts
from hotloop.core.findings import Finding, Severity, Where
from hotloop.diagnose.rules.recompilation import judge_recompilation
from tests.diagnose.build_analysis import make_analysis

PLACE = Where(file="train.py", line=12, function="forward")
COMPILED = CompileFacts(used=True, recompiles=5, recompile_reasons=(("size mismatch at index 1", PLACE),))
STEP_NS = 20_000_000


def bursts(steps: list[int], compile_ns: int = 400_000_000) -> dict[str, list[int]]:
    """Every step takes STEP_NS; compiling ones take more, in forward."""
    extra = [compile_ns if step in steps else 0 for step in range(100)]
    return {"compile_ns": extra, "forward_ns": [STEP_NS // 3 + one for one in extra]}


def test_compiling_all_along_costs_its_share_and_names_the_guard() -> None:
    found = judge_recompilation.judge(make_analysis(columns=bursts([5, 30, 60, 95]), compile=COMPILED))
    assert isinstance(found, Finding)
    assert found.cost_ratio == pytest.approx(16e6 / 36e6, rel=0.01)
    assert found.severity is Severity.HIGH
    assert found.where == (PLACE,)
    assert found.fix is not None
    assert found.fix.technique == "dynamic-shapes"


def test_the_noise_that_compiling_makes_does_not_hide_it() -> None:
    one = make_analysis(columns=bursts([50], 4_000_000_000), compile=COMPILED, step_noise_ratio=0.66)
    assert isinstance(judge_recompilation.judge(one), Finding)


def test_compiling_that_has_stopped_is_forecast_lower() -> None:
    going_on = judge_recompilation.judge(make_analysis(columns=bursts([5, 30, 60, 95]), compile=COMPILED))
    stopped = judge_recompilation.judge(make_analysis(columns=bursts([5, 10, 20, 30]), compile=COMPILED))
    assert isinstance(going_on, Finding)
    assert isinstance(stopped, Finding)
    assert going_on.saving is not None
    assert stopped.saving is not None
    assert stopped.saving.low_ratio < going_on.saving.low_ratio


def test_a_compiled_model_that_settled_is_no_finding() -> None:
    assert judge_recompilation.judge(make_analysis(columns=bursts([]), compile=COMPILED)) is None


def test_a_trace_of_compiling_below_one_percent_is_no_finding() -> None:
    assert judge_recompilation.judge(make_analysis(columns=bursts([5], 15_000_000), compile=COMPILED)) is None
