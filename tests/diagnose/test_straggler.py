import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Numerics, Severity, Where
from hotloop.judge.diagnose.rules.blocking_checkpoint import blocking_checkpoint
from hotloop.judge.diagnose.rules.straggler import judge_straggler
from tests.diagnose.build_ranks import make_ddp, make_ranks

from .build_analysis import find, fix_of, make_line, make_loader, saving_of


def test_the_slowest_of_four_costs_what_the_second_slowest_leaves() -> None:
    quick = {"ddp": make_ddp(comm_ns=9e6, overlap_ns=3e6), "forward": 0.2, "backward": 0.75}
    second = {"ddp": make_ddp(comm_ns=6e6, overlap_ns=3e6), "forward": 0.35, "backward": 0.6}
    slow = {"ddp": make_ddp(comm_ns=4e6, overlap_ns=3e6), "forward": 0.45, "backward": 0.5}
    found = find(judge_straggler, make_ranks(quick, slow, second, quick))
    assert found.ranks == (1,)
    assert found.cost_ratio == pytest.approx((5 + 2 + 5) / 3 * 1e6 / 20e6)
    assert found.evidence["others_wait_ns_per_step"] == pytest.approx(4e6)


def test_ranks_that_wait_alike_are_no_finding() -> None:
    even = {"ddp": make_ddp(comm_ns=9e6, overlap_ns=3e6)}
    assert judge_straggler.judge(make_ranks(even, even)) is None


def uneven(forward: float, **fields: object) -> dict[str, object]:
    """A rank that spends ``forward`` of 20 ms there; what it does not work it waits in backward."""
    waits_ns = (0.55 - forward) * 20e6
    return {
        "ddp": make_ddp(comm_ns=waits_ns + 4e6, overlap_ns=3e6),
        "forward": forward,
        "backward": 0.95 - forward,
        **fields,
    }


def test_the_same_gap_with_more_samples_is_a_fault() -> None:
    found = find(judge_straggler, make_ranks(uneven(0.42, samples_per_step=32.0), uneven(0.49, samples_per_step=40.0)))
    assert saving_of(found).low_ratio > 0.0


def test_more_samples_are_evened_out_over_the_ranks_and_not_made_away_with() -> None:
    more = find(judge_straggler, make_ranks(uneven(0.30, samples_per_step=32.0), uneven(0.49, samples_per_step=64.0)))
    slower = find(judge_straggler, make_ranks(uneven(0.30, host="a"), uneven(0.49, host="b")))
    assert saving_of(more).mid_ratio == pytest.approx(0.5 * saving_of(slower).mid_ratio)
    assert more.severity is Severity.MEDIUM


def test_a_gap_that_comes_in_bursts_is_less_sure_than_a_steady_one() -> None:
    def low(series: list[int]) -> float:
        one = uneven(0.2, columns={"forward_ns": [4_000_000] * 100})
        slow = uneven(0.2, columns={"forward_ns": series}) | {
            "ddp": make_ddp(comm_ns=6e6, overlap_ns=3e6),
            "backward": 0.55,
        }
        found = find(judge_straggler, make_ranks(one, slow))
        return saving_of(found).low_ratio

    steady = low([8_000_000] * 100)
    bursts = low([4_000_000] * 75 + [20_000_000] * 25)
    assert bursts < 0.8 * steady


def uneven_hosts_core(delay_ratio: float | None, **changes: float) -> Analysis:
    """Rank 1 takes 30 of 100 ms longer in forward; for ``delay_ratio`` of the step it was ready without a core."""
    return make_ranks(
        {
            "step_ns": 100e6,
            "ddp": make_ddp(comm_ns=50e6, overlap_ns=10e6),
            "forward": 0.2,
            "backward": 0.75,
            "run_delay_ratio": 0.01,
        },
        {
            "step_ns": 100e6,
            "ddp": make_ddp(comm_ns=20e6, overlap_ns=10e6),
            "forward": 0.5,
            "backward": 0.45,
            "run_delay_ratio": delay_ratio,
        }
        | changes,
    )


@pytest.mark.parametrize("delay_ratio", [None, 0.02])
def test_a_rank_that_had_its_core_all_the_time_is_a_straggler(delay_ratio: float | None) -> None:
    found = find(judge_straggler, uneven_hosts_core(delay_ratio))
    assert found.severity in (Severity.HIGH, Severity.MEDIUM)
    assert "other threads" not in found.title


def test_a_rank_with_more_samples_is_a_straggler_whoever_shares_its_core() -> None:
    found = find(judge_straggler, uneven_hosts_core(0.26, samples_per_step=64.0))
    assert found.severity in (Severity.HIGH, Severity.MEDIUM)


def saver(after_input: float, *, saver_rank: int = 0, late_rank: int = 0) -> Analysis:
    """One rank writes a checkpoint of 20 ms a step with an fsync of 10 ms; ``late_rank`` spends ``after_input`` more.

    Every rank waits in a barrier for what it does not work itself.
    """

    def fields(rank: int) -> dict[str, object]:
        saves, late = 0.3 * (rank == saver_rank), after_input * (rank == late_rank)
        lines = {"after_input_ns": (make_line(37, 1.0, "time.sleep(0.03)"),)}
        if saves:
            lines["checkpoint_ns"] = (make_line(21, 0.9, "torch.save(state, f)", function="save", file="saving.py"),)
            lines["other_ns"] = (make_line(23, 1.0, "os.fsync(file)", function="save", file="saving.py"),)
        return {
            "step_ns": 100e6,
            "checkpoint": saves * 2 / 3,
            "other": saves / 3,
            "after_input": late,
            "communication": 0.3 + after_input - saves - late,
            "forward": 0.6 - after_input,
            "backward": 0.1,
            "optimizer": 0.0,
            "lines": lines,
        }

    return make_ranks(fields(0), fields(1))


def test_a_rank_that_writes_checkpoints_is_left_to_that_rule() -> None:
    assert blocking_checkpoint.judge(saver(0.0)) is not None
    assert judge_straggler.judge(saver(0.0)) is None


@pytest.mark.parametrize("late_rank", [0, 1])
def test_a_rank_that_is_late_beside_the_checkpoints_is_named_for_that_time_alone(late_rank: int) -> None:
    found = find(judge_straggler, saver(0.2, late_rank=late_rank))
    assert found.ranks == (late_rank,)
    assert found.cost_ratio == pytest.approx(0.2)
    assert found.evidence["longer_ns_per_step"] == 20_000_000
    assert [where.line for where in found.where] == [37]
    saves = find(blocking_checkpoint, saver(0.2, late_rank=late_rank))
    assert saves.cost_ratio + found.cost_ratio == pytest.approx(0.5)


def test_saves_too_short_to_be_told_stay_with_the_straggler() -> None:
    ranks = (
        {"step_ns": 100e6, "checkpoint": 0.005, "other": 0.2, "forward": 0.4, "backward": 0.345, "optimizer": 0.05},
        {"step_ns": 100e6, "communication": 0.205, "forward": 0.4, "backward": 0.345, "optimizer": 0.05},
    )
    assert blocking_checkpoint.judge(make_ranks(*ranks)) is None
    found = find(judge_straggler, make_ranks(*ranks))
    assert found.cost_ratio == pytest.approx(0.205)


def longer(tokens: float, **fields: object) -> Analysis:
    """Rank 1 has ``tokens`` a step, rank 0 has 900, and computes longer in backward."""
    quick = {"ddp": make_ddp(comm_ns=9e6, overlap_ns=3e6), "forward": 0.3, "backward": 0.65, "tokens_per_step": 900.0}
    slow = quick | {"ddp": make_ddp(comm_ns=4e6, overlap_ns=3e6), "tokens_per_step": tokens}
    slow["lines"] = {"backward_ns": (make_line(57, 1.0, "loss.backward()"),)}
    return make_ranks(quick, slow | fields)


def test_a_rank_with_longer_samples_is_told_where_its_batches_are_made() -> None:
    made = Where(file="train.py", line=52, function="main")
    found = find(judge_straggler, longer(1800.0, batch_where=made))
    assert [where.line for where in found.where] == [52, 57]
    assert (found.evidence["more_of"], found.evidence["times_the_others"]) == ("tokens", 2.0)


def test_the_loader_is_named_where_there_is_one() -> None:
    loader = make_loader(where=Where(file="data.py", line=9, function="build"))
    found = find(judge_straggler, longer(1800.0, loaders=(loader,)))
    assert [(where.file, where.line) for where in found.where] == [("data.py", 9), ("train.py", 57)]


def test_a_rank_with_as_many_tokens_keeps_the_line_of_its_longer_phase() -> None:
    found = find(judge_straggler, longer(900.0, batch_where=Where(file="train.py", line=52, function="main")))
    assert [where.line for where in found.where] == [57]
    assert "more_of" not in found.evidence


def test_a_rank_with_longer_sequences_is_told_with_its_loader_and_the_dealing_changes_the_data() -> None:
    short = uneven(0.30, tokens_per_step=400.0, samples_per_step=16.0)
    long = uneven(0.45, tokens_per_step=900.0, samples_per_step=16.0, loaders=(make_loader(),))
    lines = {"forward_ns": (make_line(63, 1.0, "return self.encoder(x)"),)}
    found = find(judge_straggler, make_ranks(short, long | {"lines": lines}))
    assert [where.line for where in found.where] == [20, 63]
    assert (found.evidence["more_of"], found.evidence["times_the_others"]) == ("tokens", 2.25)
    assert found.fix is not None
    assert fix_of(found).numerics is Numerics.RESAMPLED


def test_longer_work_in_several_phases_is_told_beside_that_of_the_longest() -> None:
    longer = uneven(0.30) | {"input_wait": 0.10, "backward": 0.55}
    found = find(judge_straggler, make_ranks(uneven(0.15), longer | {"ddp": make_ddp(comm_ns=4e6, overlap_ns=3e6)}))
    assert "ms longer per step, 3 ms of it in forward" in found.title
