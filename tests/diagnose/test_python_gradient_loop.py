import pytest

from hotloop.core.analysis import Analysis, Forecast
from hotloop.core.findings import Basis, Finding, Severity, Skipped
from hotloop.judge.diagnose.rules.python_gradient_loop import python_gradient_loop

from .build_analysis import Told, check, find, make_analysis, make_forecast, make_line, make_optimizer, saving_of

CLIPPING = {"after_backward_ns": (make_line(55, 1.0, "total += p.grad.norm().item() ** 2"),)}


def test_clipping_by_hand_is_named_by_its_line() -> None:
    one = find(
        python_gradient_loop,
        make_analysis(after_backward=0.4, lines=CLIPPING, optimizers=(make_optimizer(tensors=200),)),
    )
    assert one.where[0].line == 55
    assert one.severity is Severity.HIGH
    assert saving_of(one).basis is Basis.RULE_OF_THUMB
    assert 0.3 < saving_of(one).mid_ratio < 0.4


def test_what_a_pass_over_the_gradients_takes_anyway_is_not_promised() -> None:
    slow = find(
        python_gradient_loop,
        make_analysis(after_backward=0.2, optimizer=0.6, lines=CLIPPING, optimizers=(make_optimizer(),)),
    )
    assert saving_of(slow).mid_ratio < 0.1


def test_rows_of_weights_that_are_scaled_in_place_count() -> None:
    lines = {"other_ns": (make_line(71, 1.0, "for row in p.data: row.mul_(1 - 1e-4)"),)}
    assert isinstance(python_gradient_loop.judge(make_analysis(other=0.3, lines=lines)), Finding)


@pytest.mark.parametrize(
    ("analysis", "told"),
    [
        pytest.param(
            make_analysis(
                after_backward=0.4,
                lines=CLIPPING,
                forecasts={"foreach-clipping": make_forecast("foreach-clipping", 0.2, 0.21, 0.22)},
            ),
            {"saving.mid_ratio": 0.21, "saving.basis": Basis.MEASURED},
            id="the_probe_is_believed",
        ),
        # The probe's 1 ms takes half as long again in a step.
        pytest.param(
            make_analysis(
                after_backward=0.4,
                lines=CLIPPING,
                forecasts={
                    "foreach-clipping": Forecast(
                        technique="foreach-clipping",
                        saving_low_ratio=0.01,
                        saving_mid_ratio=0.02,
                        saving_high_ratio=0.03,
                        settings={"foreach": True},
                        evidence={"foreach_ns": 1_000_000, "by_hand_ns": 1_400_000},
                    )
                },
            ),
            {"saving.mid_ratio": pytest.approx(0.4 - 1.5 * 1 / 20), "saving.basis": Basis.MEASURED},
            id="what_the_probe_says_would_remain_is_taken_from_what_this_loop_costs",
        ),
        pytest.param(
            make_analysis(after_backward=0.4, lines=CLIPPING),
            {"saving.basis": Basis.RULE_OF_THUMB, "saving.mid_ratio": pytest.approx(0.32)},
            id="without_sizes_it_is_a_rule_of_thumb",
        ),
        pytest.param(
            make_analysis(other=0.3, lines={"other_ns": (make_line(70, 1.0, "for p in model.parameters():"),)}),
            {"cost_ratio": pytest.approx(0.3)},
            id="decay_by_hand_after_the_optimizer_counts",
        ),
        pytest.param(
            make_analysis(
                after_backward=0.2,
                lines={
                    "after_backward_ns": (
                        make_line(55, 1.0, "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"),
                    )
                },
            ),
            None,
            id="the_librarys_own_clipping_is_no_loop_of_the_user",
        ),
        pytest.param(make_analysis(after_backward=0.2), Skipped, id="without_samples_the_gap_cannot_be_judged"),
        pytest.param(make_analysis(after_backward=0.005, lines=CLIPPING), None, id="a_short_gap_is_nothing"),
    ],
)
def test_what_is_told(analysis: Analysis, told: Told) -> None:
    check(python_gradient_loop, analysis, told)
