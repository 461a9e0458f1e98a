import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Severity
from hotloop.judge.diagnose.rules.worker_restart import worker_restart

from .build_analysis import Told, check, find, make_analysis, make_loader


def epochs_of(steps: int, start_ns: int = 60_000_000, **loader: object) -> Analysis:
    starts = [1 if i % steps == 0 else 0 for i in range(100)]
    return make_analysis(
        columns={
            "iterators": starts,
            "iterator_ns": [start_ns * s for s in starts],
            "input_wait_ns": [200_000 + 20_000_000 * s for s in starts],
        },
        loaders=(make_loader(**({"num_workers": 2, "fetch_ns": 5e6, "collate_ns": 0.0} | loader)),),
    )


def test_how_many_workers_are_enough_is_not_said_where_loading_was_not_measured() -> None:
    one = find(worker_restart, epochs_of(10, fetch_ns=None))
    assert "enough_workers" not in {name for name, value in one.evidence.items() if value is not None}


@pytest.mark.parametrize("loader", [{"persistent_workers": True}, {"num_workers": 0}])
def test_workers_that_stay_or_do_not_exist_cannot_restart(loader: dict[str, object]) -> None:
    assert worker_restart.judge(epochs_of(10, **loader)) is None


def test_a_restart_within_the_burst_of_a_validation_is_the_validations() -> None:
    starts = [1 if i % 10 == 0 else 0 for i in range(100)]
    analysis = make_analysis(
        columns={
            "iterators": starts,
            "iterator_ns": [60_000_000 * s for s in starts],
            "burst_input_ns": [60_000_000 * s for s in starts],
        },
        loaders=(make_loader(num_workers=2),),
    )
    assert worker_restart.judge(analysis) is None


def test_steps_that_wait_for_the_queue_to_fill_count_as_the_restart() -> None:
    starts = [1 if i % 20 == 0 else 0 for i in range(100)]
    waits = [(30_000_000, 20_000_000, 10_000_000)[i % 20] if i % 20 < 3 else 200_000 for i in range(100)]
    analysis = make_analysis(
        columns={"iterators": starts, "iterator_ns": [40_000_000 * s for s in starts], "input_wait_ns": waits},
        loaders=(make_loader(num_workers=2, fetch_ns=0.0, collate_ns=0.0),),
    )
    one = find(worker_restart, analysis)
    assert one.cost_ns == pytest.approx((40e6 + 60e6 - 3 * 0.2e6) / 20, rel=0.01)


@pytest.mark.parametrize(
    ("analysis", "told"),
    [
        # The first batch of a pass takes 5 ms of the 80 ms with any workers.
        # 5 ms of loading hide behind 20 ms of computing
        pytest.param(
            epochs_of(10),
            {
                "severity": Severity.HIGH,
                "cost_ns": pytest.approx(8e6, rel=0.01),
                "saving.mid_ratio": pytest.approx(0.97 * 7.5 / 28.2, abs=0.01),
                "where.0.line": 20,
                "fix.settings.persistent_workers": True,
                "evidence.enough_workers": 1,
            },
            id="short_epochs_restart_their_workers_again_and_again",
        ),
        pytest.param(
            epochs_of(50, start_ns=20_000_000), {"severity": Severity.LOW}, id="rare_restarts_are_at_most_low"
        ),
        pytest.param(epochs_of(100), None, id="one_long_pass_has_no_restart"),
    ],
)
def test_what_is_told(analysis: Analysis, told: Told) -> None:
    check(worker_restart, analysis, told)
