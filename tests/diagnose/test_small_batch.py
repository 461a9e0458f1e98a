from hotloop.core.findings import Basis, Finding, Kind, Numerics, Severity, Skipped
from hotloop.diagnose.rules.small_batch import judge_small_batch
from tests.diagnose.build_analysis import make_analysis, make_forecast, make_loader


def many_small_ops(count: int) -> dict[str, object]:
    op = {"name": "aten::mm", "shapes": [[4, 4], [4, 4]], "count": count, "cpu_ns": 1e6, "backward": False}
    return {"steps": 1, "ops": [op]}


def test_a_measured_gain_is_an_opportunity_that_earns_its_severity() -> None:
    forecasts = {"larger-batch": make_forecast("larger-batch", 0.2, 0.3, 0.4, factor=2)}
    found = judge_small_batch.judge(make_analysis(forecasts=forecasts, loaders=(make_loader(),)))
    assert isinstance(found, Finding)
    assert found.kind is Kind.OPPORTUNITY
    assert found.severity is Severity.HIGH
    assert found.fix is not None
    assert (found.fix.technique, found.fix.numerics) == ("larger-batch", Numerics.LOSSY)
    assert found.where[0].line == 20


def test_under_accumulation_larger_micro_batches_leave_the_gradient_alone() -> None:
    forecasts = {"larger-batch": make_forecast("larger-batch", 0.2, 0.3, 0.4, factor=2)}
    found = judge_small_batch.judge(make_analysis(forecasts=forecasts, fields={"micro_batches": 4}))
    assert isinstance(found, Finding)
    assert found.fix is not None
    assert (found.fix.technique, found.fix.numerics) == ("larger-micro-batch", Numerics.REORDERED)


def test_a_gain_within_the_noise_is_no_finding() -> None:
    forecasts = {"larger-batch": make_forecast("larger-batch", 0.0, 0.03, 0.1, factor=2)}
    assert judge_small_batch.judge(make_analysis(forecasts=forecasts, step_noise_ratio=0.02)) is None


def test_operator_counts_alone_never_make_it_more_than_low() -> None:
    found = judge_small_batch.judge(make_analysis(step_ns=1e6, ops=many_small_ops(350)))
    assert isinstance(found, Finding)
    assert found.saving is not None
    assert found.saving.basis is Basis.RULE_OF_THUMB
    assert found.severity is Severity.LOW


def test_few_operators_in_a_long_step_are_no_small_batch() -> None:
    assert judge_small_batch.judge(make_analysis(step_ns=20e6, ops=many_small_ops(350))) is None


def test_without_probe_and_operators_it_is_skipped() -> None:
    assert isinstance(judge_small_batch.judge(make_analysis()), Skipped)


def test_where_samples_could_not_be_counted_the_saving_is_still_of_each_of_them() -> None:
    forecasts = {"larger-batch": make_forecast("larger-batch", 0.2, 0.3, 0.4, factor=2)}
    found = judge_small_batch.judge(make_analysis(forecasts=forecasts, unit="step", units_per_step=None))
    assert isinstance(found, Finding)
    assert found.unit == "sample"
    assert "per step" not in found.title
