import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Basis, Finding, Severity, Skipped, Where
from hotloop.judge.diagnose.rules.exposed_communication import judge_exposed_communication
from hotloop.judge.diagnose.rules.python_gradient_loop import python_gradient_loop
from tests.diagnose.build_ranks import MIB, make_ddp, make_ranks

from .build_analysis import Told, check, find, fix_of, make_analysis, make_line, saving_of

ONE_BUCKET = {"bucket_sizes": (40 * MIB,), "bucket_cap_bytes": 1000 * MIB}


def two(ddp: dict[str, object] | None, **rank: object) -> Analysis:
    facts = None if ddp is None else make_ddp(**ddp)
    return make_ranks(*({"ddp": facts} | rank for _ in range(2)))


def test_splitting_a_bucket_hides_nothing_where_ranks_compute_on_all_cores() -> None:
    full = {"cores": 2, "torch_threads": 1, "network_bytes_per_s": {"eth0": 1e3}}
    found = find(judge_exposed_communication, two(ONE_BUCKET | {"comm_ns": 10e6, "overlap_ns": 0.5e6}, **full))
    assert found.severity in (Severity.LOW, Severity.INFO)
    assert fix_of(found).technique == "fewer-synchronisations"


def test_the_exchange_of_sharded_weights_is_no_fault_of_the_script() -> None:
    sharded = {"model_is_sharded": True, "fields": {"collectives": 9}}
    found = find(judge_exposed_communication, two(None, communication=0.27, **sharded))
    assert found.severity in (Severity.LOW, Severity.INFO)
    assert saving_of(found).basis is Basis.RULE_OF_THUMB
    assert fix_of(found).technique == "fewer-synchronisations"


def test_gradients_that_fsdp2_spreads_after_every_micro_batch_are_told_by_another_rule() -> None:
    def cost(**fields: float) -> float | None:
        one = two(None, communication=0.4, model_is_sharded=True, fields={"collectives": 40, **fields})
        found = find(judge_exposed_communication, one)
        return found.cost_ratio

    assert cost(backwards=4, synced_backwards=4) == pytest.approx(0.1)
    assert cost(backwards=4, synced_backwards=1) == cost() == pytest.approx(0.4)


def test_ordinary_ddp_on_a_slow_host_is_never_more_than_low() -> None:
    found = find(judge_exposed_communication, two({"comm_ns": 11e6, "overlap_ns": 1e6}))
    assert found.severity in (Severity.LOW, Severity.INFO)


def crossing_a_quick_network(**ddp: object) -> Analysis:
    """Two ranks on two hosts that exchange 40 MiB over 1 GB/s in a step of 60 ms."""
    step_ns = 60e6
    rates = {"eth0": 40 * MIB / (step_ns * 1e-9)}
    return two(
        {"bucket_sizes": (20 * MIB, 20 * MIB), "comm_ns": 42e6, "overlap_ns": 5e6, "backward_compute_ns": 5e6} | ddp,
        step_ns=step_ns,
        network_bytes_per_s=rates,
        network_speed_bytes_per_s={"eth0": 1.25e9},
        local_world_size=1,
        backward=0.9,
    )


def test_where_backward_hides_what_is_sent_nothing_is_prescribed_to_send_less() -> None:
    found = find(
        judge_exposed_communication, crossing_a_quick_network(comm_ns=42e6, overlap_ns=36e6, backward_compute_ns=36e6)
    )
    assert fix_of(found).technique != "compress-gradients"


def test_collectives_of_an_applied_technique_are_not_the_script_s_own() -> None:
    sender = "compress-gradients"
    waits = {
        "communication": 0.3,
        "fields": {"collectives": 30},
        "lines": {"communication_ns": (make_line(9, 1, "loss.backward()"),)},
    }
    found = find(judge_exposed_communication, two({"comm_ns": 4e6, "overlap_ns": 4e6}, applied=(sender,), **waits))
    assert fix_of(found).technique == "fewer-synchronisations"
    assert (found.evidence["own_collectives_ratio"], found.evidence["exchanged_by"]) == (0.0, sender)
    assert (found.phase, found.where[0].line) == ("communication", 9)
    assert found.severity in (Severity.LOW, Severity.INFO)


def averaging(function: str = "average_gradients", ddp: dict[str, object] | None = None, **rank: object) -> Analysis:
    """Two ranks whose loop calls a function that averages by hand: 30 % of the step in collectives, 20 % around."""
    loop = Where(file="train.py", line=90, function="main")
    stack = (loop, Where(file="train.py", line=12, function=function))
    lines = {
        "backward_ns": (make_line(90, 1.0, "loss.backward()", stack=(loop,)),),
        "communication_ns": (make_line(11, 1.0, "dist.all_gather(parts, p.grad)", function=function, stack=stack),),
        "after_backward_ns": (make_line(12, 1.0, "p.grad = stack.mean(0)", function=function, stack=stack),),
    }
    model = {"model_parameters": 250_000, "fields": {"collectives": 100}}
    return two(ddp, communication=0.3, after_backward=0.2, lines=lines, **model, **rank)


def test_loops_in_a_function_that_averages_by_hand_go_with_its_collectives() -> None:
    found, loop = find(judge_exposed_communication, averaging()), python_gradient_loop.judge(averaging())
    assert loop is None
    assert found.cost_ratio == pytest.approx(0.5)
    # Of 6 ms in collectives, 0.06 ms of latency and 1 ms of bytes stay; of the loops nothing.
    assert saving_of(found).mid_ratio == pytest.approx(0.3 * (1 - 1.06 / 6) + 0.2, rel=0.02)
    assert found.time_ns["other"] == pytest.approx(4e6, rel=0.01)
    assert "20%" in found.title


def test_a_loop_that_clips_stays_one_although_it_needs_the_other_ranks_norms() -> None:
    analysis = averaging("clip_gradients")
    found, loop = find(judge_exposed_communication, analysis), find(python_gradient_loop, analysis)
    assert found.cost_ratio == pytest.approx(0.3)
    assert loop.cost_ratio == pytest.approx(0.2)


def test_loops_around_collectives_stay_loops_where_ddp_does_most_of_the_exchange() -> None:
    analysis = averaging(ddp={"comm_ns": 9e6, "overlap_ns": 0.0}, backward=0.45)
    assert isinstance(python_gradient_loop.judge(analysis), Finding)


@pytest.mark.parametrize(
    ("analysis", "told"),
    [
        pytest.param(
            two(
                None,
                communication=0.5,
                fields={"collectives": 30},
                lines={"communication_ns": (make_line(44, 0.95, "dist.all_reduce(p.grad)"),)},
            ),
            {"cost_ratio": pytest.approx(0.5), "severity": Severity.HIGH, "phase": "communication", "where.0.line": 44},
            id="own_collectives_per_tensor_are_a_high_fault_with_their_lines",
        ),
        pytest.param(
            two(ONE_BUCKET | {"comm_ns": 10e6, "overlap_ns": 0.5e6}, torch_threads=1),
            {"severity": Severity.MEDIUM, "fix.technique": "ddp-buckets"},
            id="one_huge_bucket_is_a_fault_that_smaller_ones_treat",
        ),
        # Of 10 ms, 0.1 ms of latency and 1 ms of bytes stay.
        pytest.param(
            two(None, communication=0.5, fields={"collectives": 100}, model_parameters=250_000),
            {"saving.mid_ratio": pytest.approx(0.89 * 0.5, rel=0.02)},
            id="one_call_in_place_of_many_leaves_one_latency_and_the_bytes",
        ),
        pytest.param(
            two(
                None,
                communication=0.4,
                fields={"collectives": 1},
                cores=2,
                torch_threads=1,
                network_bytes_per_s={"lo": 1e9},
            ),
            {"severity": Severity.INFO, "saving.mid_ratio": pytest.approx(0.04)},
            id="one_flat_tensor_of_gradients_on_shared_cores_is_as_good_as_it_gets",
        ),
        pytest.param(
            two(None, communication=0.4, fields={"collectives": 1}, local_world_size=1),
            {"severity": Severity.MEDIUM},
            id="one_flat_tensor_of_gradients_between_hosts_could_be_hidden",
        ),
        pytest.param(
            two({"comm_ns": 4e6, "overlap_ns": 4e6}, communication=0.2, fields={"collectives": 2}),
            {"saving.mid_ratio": pytest.approx(0.16)},
            id="metrics_reduced_in_every_step_beside_ddp_can_be_left_out",
        ),
        pytest.param(
            make_ranks({"ddp": make_ddp(comm_ns=9e6)}, {"ddp": make_ddp(comm_ns=4.1e6)}),
            None,
            id="only_the_least_over_the_ranks_counts",
        ),
        pytest.param(
            two(
                {"comm_ns": 2e6, "overlap_ns": 0.5e6},
                fields={"backwards": 4, "micro_batches": 4, "synced_backwards": 4},
            ),
            {"cost_ratio": pytest.approx(1.5e6 / 20e6)},
            id="what_needless_synchronisation_explains_is_not_counted_again",
        ),
        pytest.param(make_analysis(), None, id="a_single_process_is_no_finding"),
        pytest.param(two({"comm_ns": None}), Skipped, id="without_statistics_it_is_skipped"),
        # Of 37 ms stay 21 ms on the wire less 5 ms that backward hides, and 15 ms of rounding 10 Mi elements.
        pytest.param(
            crossing_a_quick_network(),
            {
                "fix.technique": "compress-gradients",
                "fix.settings": {"method": "bf16"},
                "saving.basis": Basis.SIMULATED,
            },
            id="a_quick_network_that_is_still_waited_for_gets_the_way_of_sending_that_pays",
        ),
        pytest.param(
            two(
                {"comm_ns": 4e6, "overlap_ns": 4e6},
                applied=("compress-gradients",),
                communication=0.3,
                fields={"collectives": 8},
                lines={
                    "communication_ns": (
                        make_line(9, 0.2, "loss.backward()"),
                        make_line(12, 0.8, "dist.all_reduce(metric)"),
                    )
                },
            ),
            {
                "fix.technique": "overlap-own-collectives",
                "evidence.own_collectives_ratio": pytest.approx(0.24),
                "evidence.gradient_exchange_ratio": pytest.approx(0.06),
            },
            id="the_script_s_own_collectives_beside_compressed_gradients_stay_its_own",
        ),
    ],
)
def test_what_is_told(analysis: Analysis, told: Told) -> None:
    check(judge_exposed_communication, analysis, told)
