from dataclasses import replace
from typing import Any

import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Basis, Finding, Kind, Numerics, Severity, Skipped, Where
from hotloop.judge.diagnose.completion import rank_findings
from hotloop.judge.diagnose.rules.slow_optimizer import slow_optimizer
from hotloop.judge.diagnose.rules.small_batch import judge_small_batch
from tests.diagnose.build_ranks import MIB, make_ddp, make_ranks

from .build_analysis import (
    Told,
    check,
    find,
    make_analysis,
    make_forecast,
    make_line,
    make_loader,
    make_optimizer,
    saving_of,
)


def many_small_ops(count: int) -> dict[str, object]:
    op = {"name": "aten::mm", "shapes": [[4, 4], [4, 4]], "count": count, "cpu_ns": 1e6, "backward": False}
    return {"steps": 1, "ops": [op]}


def test_loader_workers_that_set_the_pace_leave_a_larger_batch_nothing() -> None:
    """Steps of 10 ms: two workers that take 19 ms a batch allow 5 % at most, those that take 4 ms all of it."""
    forecasts = {"larger-batch": make_forecast("larger-batch", 0.2, 0.3, 0.4, factor=2)}

    def judged(fetch_ns: float) -> Finding | Skipped | None:
        loader = make_loader(num_workers=2, fetch_ns=fetch_ns, collate_ns=0.0)
        return judge_small_batch.judge(make_analysis(step_ns=10e6, forecasts=forecasts, loaders=(loader,)))

    assert judged(20e6) is None
    limited, free = judged(19e6), judged(4e6)
    assert isinstance(limited, Finding)
    assert saving_of(limited).high_ratio == pytest.approx(0.05)
    assert isinstance(free, Finding)
    assert saving_of(free).mid_ratio == pytest.approx(0.3)


def test_where_samples_could_not_be_counted_the_saving_is_still_of_each_of_them() -> None:
    forecasts = {"larger-batch": make_forecast("larger-batch", 0.2, 0.3, 0.4, factor=2)}
    found = find(judge_small_batch, make_analysis(forecasts=forecasts, unit="step", units_per_step=None))
    assert found.unit == "sample"
    assert "per step" not in found.title


def deep_and_narrow(fused: bool | None = None, **changes: Any) -> Analysis:
    """Twice the batch halves 0.8 of fixed time, of which a fused optimizer takes 0.3 away by itself."""
    forecasts = {
        "larger-batch": make_forecast("larger-batch", 0.3, 0.4, 0.45, factor=2),
        "fused-optimizer": make_forecast("fused-optimizer", 0.2, 0.3, 0.34, fused=True),
    }
    return make_analysis(optimizer=0.4, optimizers=(make_optimizer(fused=fused),), forecasts=forecasts, **changes)


def test_a_faster_optimizer_stands_before_the_larger_batch_that_would_share_its_time() -> None:
    analysis = deep_and_narrow()
    batch, optimizer = find(judge_small_batch, analysis), find(slow_optimizer, analysis)
    assert [one.rule for one in rank_findings((batch, optimizer))] == ["slow-optimizer", "small-batch"]


def two_ranks(bucket_sizes: tuple[int, ...]) -> Analysis:
    forecasts = {
        "larger-batch": make_forecast("larger-batch", 0.0, 0.185, 0.42, factor=2),
        "ddp-buckets": make_forecast("ddp-buckets", 0.09, 0.175, 0.26, bucket_cap_mb=25),
    }
    ddp = make_ddp(bucket_sizes=bucket_sizes, parameter_bytes=sum(bucket_sizes))
    return make_ranks(*({"ddp": ddp, "forecasts": forecasts} for _ in range(2)))


def test_without_a_loader_the_statement_that_makes_the_batch_is_named() -> None:
    forecasts = {"larger-batch": make_forecast("larger-batch", 0.2, 0.3, 0.4, factor=2)}
    made = Where(file="train.py", line=31, function="main")
    found = find(judge_small_batch, make_analysis(forecasts=forecasts, batch_where=made))
    assert found.where == (made,)


def test_the_line_below_that_statement_comes_first_where_samples_show_it() -> None:
    made = Where(file="train.py", line=31, function="main")
    inner = make_line(8, 0.9, "x = torch.stack([data[i] for i in ix])", function="get_batch")
    inner = replace(inner, stack=(made, inner.where))
    loop = make_line(40, 1.0, "loss.backward()")
    forecasts = {"larger-batch": make_forecast("larger-batch", 0.2, 0.3, 0.4, factor=2)}
    found = find(
        judge_small_batch,
        make_analysis(
            forecasts=forecasts, batch_where=made, lines={"other_ns": (inner,), "backward_ns": (loop,)}, other=0.1
        ),
    )
    assert [where.line for where in found.where] == [8, 31]


@pytest.mark.parametrize(
    ("analysis", "told"),
    [
        pytest.param(
            make_analysis(
                forecasts={"larger-batch": make_forecast("larger-batch", 0.2, 0.3, 0.4, factor=2)},
                loaders=(make_loader(),),
            ),
            {
                "kind": Kind.OPPORTUNITY,
                "severity": Severity.HIGH,
                "fix.technique": "larger-batch",
                "fix.numerics": Numerics.LOSSY,
                "where.0.line": 20,
            },
            id="a_measured_gain_is_an_opportunity_that_earns_its_severity",
        ),
        pytest.param(
            make_analysis(
                forecasts={"larger-batch": make_forecast("larger-batch", 0.2, 0.3, 0.4, factor=2)},
                fields={"micro_batches": 4},
            ),
            {"fix.technique": "larger-micro-batch", "fix.numerics": Numerics.REORDERED},
            id="under_accumulation_larger_micro_batches_leave_the_gradient_alone",
        ),
        pytest.param(
            make_analysis(forecasts={"larger-batch": make_forecast("larger-batch", 0.0, 0.18, 0.3, factor=2)}),
            {"severity": Severity.INFO},
            id="a_gain_that_may_be_none_is_not_told_as_sure",
        ),
        pytest.param(
            make_analysis(
                forecasts={"larger-batch": make_forecast("larger-batch", 0.0, 0.03, 0.1, factor=2)},
                step_noise_ratio=0.02,
            ),
            None,
            id="a_gain_within_the_noise_is_no_finding",
        ),
        pytest.param(
            make_analysis(step_ns=1e6, ops=many_small_ops(350)),
            {"saving.basis": Basis.RULE_OF_THUMB, "severity": Severity.LOW},
            id="operator_counts_alone_never_make_it_more_than_low",
        ),
        pytest.param(
            make_analysis(step_ns=20e6, ops=many_small_ops(350)),
            None,
            id="few_operators_in_a_long_step_are_no_small_batch",
        ),
        pytest.param(make_analysis(), Skipped, id="without_probe_and_operators_it_is_skipped"),
        pytest.param(
            deep_and_narrow(),
            {
                "saving.low_ratio": pytest.approx(0.3 - 0.34 / 2),
                "saving.mid_ratio": pytest.approx(0.4 - 0.3 / 2),
                "saving.high_ratio": pytest.approx(0.45 - 0.2 / 2),
                "evidence.alone_saving_ratio": 0.4,
            },
            id="what_a_faster_optimizer_saves_is_not_promised_twice",
        ),
        pytest.param(
            deep_and_narrow(fused=True),
            {"saving.mid_ratio": pytest.approx(0.4)},
            id="the_time_of_an_optimizer_that_is_fused_already_is_shared_by_a_larger_batch",
        ),
        pytest.param(
            deep_and_narrow(fields={"micro_batches": 4}),
            {"saving.mid_ratio": pytest.approx(0.4)},
            id="under_accumulation_the_optimizer_is_no_part_of_what_micro_batches_share",
        ),
        pytest.param(
            two_ranks((MIB // 8,) * 40),
            {
                "saving.mid_ratio": pytest.approx(0.185 - 0.25 * 0.175),
                "saving.high_ratio": pytest.approx(0.42 - 0.5 * 0.09),
            },
            id="what_larger_buckets_save_is_not_promised_again",
        ),
        pytest.param(
            two_ranks((20 * MIB, 20 * MIB)),
            {"saving.mid_ratio": pytest.approx(0.185)},
            id="buckets_that_are_no_fault_leave_the_forecast_of_a_larger_batch",
        ),
        pytest.param(
            make_analysis(forecasts={"larger-batch": make_forecast("larger-batch", 0.2, 0.3, 0.4, factor=2)}),
            {"where": (), "evidence.line": "unknown: the source does not show which statement makes the batch"},
            id="no_line_is_named_where_the_source_does_not_tell",
        ),
    ],
)
def test_what_is_told(analysis: Analysis, told: Told) -> None:
    check(judge_small_batch, analysis, told)
