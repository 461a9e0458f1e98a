import pytest

from hotloop.core.analysis import Analysis, DdpFacts
from hotloop.core.findings import REMOVED_LOW_RATIO, Basis, Finding, Severity
from hotloop.judge.diagnose.rules.sync_every_microstep import judge_sync_every_microstep
from tests.diagnose.build_ranks import DDP_PLACE, make_ddp, make_ranks

from .build_analysis import Told, check, find, make_analysis, make_optimizer, saving_of

EVERY = {"backwards": 4, "micro_batches": 4, "synced_backwards": 4}


def two(ddp: DdpFacts, fields: dict[str, float], **rank: object) -> Analysis:
    return make_ranks(*({"ddp": ddp, "fields": fields} | rank for _ in range(2)))


def test_without_statistics_it_is_a_rule_of_thumb_and_at_most_low() -> None:
    found = find(judge_sync_every_microstep, two(make_ddp(comm_ns=None, overlap_ns=None), EVERY))
    assert saving_of(found).basis is Basis.RULE_OF_THUMB
    assert found.severity in (Severity.LOW, Severity.INFO)


def test_a_model_of_five_ddp_modules_exchanges_once_per_backward() -> None:
    parts = {"backwards": 1, "synced_backwards": 5}
    assert judge_sync_every_microstep.judge(two(make_ddp(), parts)) is None
    accumulated = {"backwards": 4, "micro_batches": 4, "synced_backwards": 20}
    assert isinstance(judge_sync_every_microstep.judge(two(make_ddp(), accumulated)), Finding)


@pytest.mark.parametrize(("backend", "basis"), [("gloo", Basis.SIMULATED), ("nccl", Basis.RULE_OF_THUMB)])
def test_latencies_that_were_not_measured_make_a_rule_of_thumb(backend: str, basis: Basis) -> None:
    facts = make_ddp(comm_ns=3e6, overlap_ns=1e6, backend=backend)
    found = find(judge_sync_every_microstep, two(facts, EVERY, device_type="cuda"))
    assert saving_of(found).basis is basis


def test_fsdp2_that_spreads_gradients_after_every_micro_batch_keeps_a_wide_range() -> None:
    sharded = {"ddp": None, "communication": 0.4, "model_is_sharded": True}
    found = find(judge_sync_every_microstep, make_ranks(*(sharded | {"fields": EVERY} for _ in range(2))))
    # Three of four exchanges: gradients alone are a third of their bytes.
    assert saving_of(found).low_ratio == pytest.approx(REMOVED_LOW_RATIO * 0.1)
    assert (saving_of(found).mid_ratio, saving_of(found).high_ratio) == (pytest.approx(0.3), pytest.approx(0.3))
    assert saving_of(found).basis is Basis.RULE_OF_THUMB
    once = EVERY | {"synced_backwards": 1}
    assert judge_sync_every_microstep.judge(make_ranks(*(sharded | {"fields": once} for _ in range(2)))) is None
    on_gpu = sharded | {"fields": EVERY, "device_type": "cuda"}
    assert judge_sync_every_microstep.judge(make_ranks(on_gpu, on_gpu)) is None


def test_over_a_network_the_transfer_that_was_seen_is_what_is_sure() -> None:
    ddp = make_ddp(comm_ns=100e6, overlap_ns=10e6)
    crossing = {"step_ns": 600e6, "network_bytes_per_s": {"eth0": 4 * 40 * (1 << 20) / 0.6}, "backward": 0.9}
    alone = find(judge_sync_every_microstep, two(ddp, EVERY, step_ns=600e6, backward=0.9, device_type="cuda"))
    found = find(judge_sync_every_microstep, two(ddp, EVERY, device_type="cuda", **crossing))
    assert saving_of(found).low_ratio == pytest.approx(REMOVED_LOW_RATIO * 3 * 90e6 / 600e6)
    assert saving_of(alone).low_ratio < saving_of(found).low_ratio


@pytest.mark.parametrize(
    ("analysis", "told"),
    [
        pytest.param(
            two(make_ddp(comm_ns=3e6, overlap_ns=1e6), EVERY),
            {
                "severity": Severity.HIGH,
                "saving.low_ratio": pytest.approx(REMOVED_LOW_RATIO * 3 * 2e6 / 20e6),
                "where": (DDP_PLACE,),
                "ranks": (0, 1),
            },
            id="synchronising_every_micro_batch_costs_all_but_one",
        ),
        # 0.1 ms of bytes and 0.25 ms of latency out of 2 ms exposed, three times.
        pytest.param(
            two(
                make_ddp(comm_ns=3e6, overlap_ns=1e6, parameter_bytes=100_000, bucket_sizes=(100_000,)),
                EVERY,
                device_type="cuda",
            ),
            {
                "saving.low_ratio": pytest.approx(REMOVED_LOW_RATIO * 3 * 0.35e6 / 20e6),
                "saving.mid_ratio": pytest.approx(0.5 * 3 * (0.35e6 + 2e6) / 20e6),
            },
            id="waiting_beyond_the_transfer_is_not_promised",
        ),
        pytest.param(
            two(make_ddp(comm_ns=3e6, overlap_ns=1e6), EVERY),
            {"saving.mid_ratio": pytest.approx(0.9 * 3 * 3e6 / 20e6), "cost_ratio": pytest.approx(3 * 3e6 / 20e6)},
            id="on_a_cpu_what_seems_hidden_takes_the_cores_that_compute",
        ),
        pytest.param(two(make_ddp(), (EVERY | {"synced_backwards": 1})), None, id="no_sync_is_no_finding"),
        pytest.param(two(make_ddp(), {}), None, id="one_backward_per_step_is_no_finding"),
        pytest.param(
            two(
                make_ddp(),
                {"backwards": 2, "micro_batches": 1, "synced_backwards": 2},
                optimizers=(make_optimizer(steps=110), make_optimizer(index=1, steps=110)),
            ),
            None,
            id="two_optimizers_with_a_backward_each_are_no_finding",
        ),
        pytest.param(make_analysis(fields=EVERY), None, id="a_single_process_is_no_finding"),
    ],
)
def test_what_is_told(analysis: Analysis, told: Told) -> None:
    check(judge_sync_every_microstep, analysis, told)
