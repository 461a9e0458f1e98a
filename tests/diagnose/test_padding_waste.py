import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Basis, Numerics, Severity, Skipped, Where
from hotloop.judge.diagnose.rules.padding_waste import judge_padding_waste

from .build_analysis import Told, check, find, make_analysis, make_loader, saving_of

COLLATE = Where(file="data.py", line=40, function="collate")


def test_padding_of_a_waiting_loop_costs_only_its_share_of_computing() -> None:
    busy = find(judge_padding_waste, make_analysis(padding_ratio=0.6, padding_to_longest_ratio=0.1))
    waiting = find(judge_padding_waste, make_analysis(padding_ratio=0.6, padding_to_longest_ratio=0.1, input_wait=0.8))
    assert saving_of(waiting).mid_ratio < 0.25 * saving_of(busy).mid_ratio


def test_a_data_set_that_hands_out_whole_batches_is_the_place() -> None:
    data = Where(file="stream.py", line=39, function="ReviewStream.__iter__")
    loader = make_loader(collate_where=None, fetch_where=data)
    found = find(
        judge_padding_waste, make_analysis(padding_ratio=0.45, padding_to_longest_ratio=0.45, loaders=(loader,))
    )
    assert found.where == (data, loader.where)


@pytest.mark.parametrize(
    ("analysis", "told"),
    [
        # 40% real tokens against 44.4% of the positions: 55.6% fewer, of the whole step without counted operators.
        pytest.param(
            make_analysis(
                padding_ratio=0.6,
                padding_to_longest_ratio=0.1,
                optimizer=0.0,
                loaders=(make_loader(collate_where=COLLATE),),
            ),
            {
                "severity": Severity.HIGH,
                "saving.mid_ratio": pytest.approx(0.556, abs=0.001),
                "fix.technique": "pad-to-longest",
                "fix.numerics": Numerics.REORDERED,
                "where.0": COLLATE,
            },
            id="padding_to_a_fixed_length_is_forecast_from_the_batches",
        ),
        pytest.param(
            make_analysis(padding_ratio=0.45, padding_to_longest_ratio=0.45),
            {"fix.technique": "group-by-length", "fix.numerics": Numerics.RESAMPLED},
            id="batches_that_mix_lengths_want_bucketing",
        ),
        pytest.param(
            make_analysis(padding_ratio=0.6),
            {"saving.basis": Basis.RULE_OF_THUMB},
            id="an_unknown_longest_length_makes_it_a_rule_of_thumb",
        ),
        pytest.param(
            make_analysis(padding_ratio=0.06, padding_to_longest_ratio=0.05), None, id="a_little_padding_is_no_finding"
        ),
        pytest.param(make_analysis(), Skipped, id="without_integer_batches_it_is_skipped"),
        # Of 100 positions 55 are tokens; with 5 % padding they take 57.9.
        pytest.param(
            make_analysis(
                padding_ratio=0.45,
                padding_to_longest_ratio=0.45,
                loaders=(make_loader(iterable=True, feeds_backward=True),),
            ),
            {
                "fix.technique": "pack-sequences",
                "fix.numerics": Numerics.REORDERED,
                "evidence.fewer_tokens_by_bucketing_ratio": pytest.approx(0.4211, abs=1e-4),
            },
            id="a_data_set_that_keeps_its_own_order_is_packed",
        ),
    ],
)
def test_what_is_told(analysis: Analysis, told: Told) -> None:
    check(judge_padding_waste, analysis, told)
