import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Basis, Severity, Skipped
from hotloop.judge.diagnose.rules.small_buckets import judge_small_buckets
from tests.diagnose.build_ranks import MIB, make_ddp, make_ranks

from .build_analysis import Told, check, find, fix_of, make_forecast

TINY = {"bucket_sizes": (MIB // 8,) * 40, "parameter_bytes": 5 * MIB, "bucket_cap_bytes": MIB // 8}


def two(ddp: dict[str, object], **rank: object) -> Analysis:
    return make_ranks(*({"ddp": make_ddp(**ddp)} | rank for _ in range(2)))


def test_the_size_of_the_buckets_follows_from_the_link_that_gradients_cross() -> None:
    many = {
        "bucket_sizes": (MIB // 2,) * 28_000,
        "parameter_bytes": 14_000 * MIB,
        "comm_ns": 1.5e9,
        "overlap_ns": 1e8,
        "backward_compute_ns": 1e8,
        "backend": "nccl",
    }
    step_ns = 1.6e9
    crossing = {
        "step_ns": step_ns,
        "network_bytes_per_s": {"ib0": 14_000 * MIB / (step_ns * 1e-9)},
        "network_speed_bytes_per_s": {"ib0": 50e9},
        "backward": 0.95,
    }
    found = find(judge_small_buckets, two(many, **crossing))
    assert fix_of(found).settings["bucket_cap_mb"] == 200
    alone = find(judge_small_buckets, two(many, step_ns=step_ns, backward=0.95))
    assert fix_of(alone).settings["bucket_cap_mb"] == 25


@pytest.mark.parametrize(
    ("analysis", "told"),
    [
        pytest.param(
            two(TINY | {"comm_ns": 12e6, "overlap_ns": 3e6}),
            {"evidence.buckets": 40, "severity": Severity.HIGH, "saving.basis": Basis.RULE_OF_THUMB},
            id="many_tiny_buckets_are_found",
        ),
        pytest.param(
            two(TINY, forecasts={"ddp-buckets": make_forecast("ddp-buckets", 0.1, 0.2, 0.3)}),
            {"saving.basis": Basis.MEASURED, "saving.mid_ratio": 0.2},
            id="a_probe_of_the_buckets_replaces_the_rule_of_thumb",
        ),
        pytest.param(
            two(TINY | {"comm_ns": 3e6, "overlap_ns": 3e6}), None, id="tiny_buckets_that_are_hidden_are_no_finding"
        ),
        pytest.param(two({}), None, id="default_buckets_are_no_finding"),
        pytest.param(two({"bucket_sizes": None, "bucket_cap_bytes": None}), Skipped, id="unknown_sizes_are_skipped"),
    ],
)
def test_what_is_told(analysis: Analysis, told: Told) -> None:
    check(judge_small_buckets, analysis, told)
