import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Finding, Severity, Skipped
from hotloop.judge.diagnose.rules.blocking_checkpoint import blocking_checkpoint
from hotloop.judge.diagnose.rules.logging_overhead import logging_overhead

from .build_analysis import Told, check, find, make_analysis, make_line, saving_of


def saves(every: int, each_ns: int) -> dict[str, list[int]]:
    happens = [1 if i % every == every - 1 else 0 for i in range(100)]
    return {"checkpoints": happens, "checkpoint_ns": [each_ns * h for h in happens]}


def test_steps_that_a_save_slows_down_are_part_of_its_cost() -> None:
    columns = saves(10, 50_000_000)
    plain = find(blocking_checkpoint, make_analysis(columns=columns))
    # The step of the save and the two after it compute 8, 8 and 4 ms longer.
    since = [(i - 9) % 10 if i >= 9 else 99 for i in range(100)]
    slower = {0: 8_000_000, 1: 8_000_000, 2: 4_000_000}
    columns["forward_ns"] = [6_000_000 + slower.get(k, 0) for k in since]
    one = find(blocking_checkpoint, make_analysis(columns=columns))
    assert one.evidence["slower_steps_after_ns"] == pytest.approx(20_000_000, rel=0.03)
    assert one.cost_ns == pytest.approx(7_000_000, rel=0.05)
    assert one.time_ns == plain.time_ns
    assert plain.evidence["slower_steps_after_ns"] is None


def test_the_files_of_one_checkpoint_are_one_stop_of_the_loop() -> None:
    columns = saves(10, 100_000_000)
    columns["checkpoints"] = [4 * count for count in columns["checkpoints"]]  # model, two optimizers, random states
    one = find(blocking_checkpoint, make_analysis(columns=columns))
    alone = find(blocking_checkpoint, make_analysis(columns=saves(10, 100_000_000)))
    assert (one.evidence["checkpoints"], one.evidence["files_per_checkpoint"]) == (10, 4.0)
    assert one.saving == alone.saving


def test_a_single_save_promises_less_than_many_of_the_same_share() -> None:
    once = find(blocking_checkpoint, make_analysis(columns=saves(100, 1_000_000_000)))
    often = find(blocking_checkpoint, make_analysis(columns=saves(10, 100_000_000)))
    assert once.cost_ratio == pytest.approx(often.cost_ratio)
    assert saving_of(once).low_ratio < saving_of(often).low_ratio


def test_flushing_and_renaming_beside_the_save_belong_to_it() -> None:
    saved = make_line(80, 1.0, "torch.save(state, path)", function="keep")
    flushed = make_line(82, 0.5, "os.fsync(fd)", function="keep")
    printed = make_line(60, 0.5, "print(loss.item())")
    analysis = make_analysis(
        columns=saves(10, 50_000_000), other=0.2, lines={"checkpoint_ns": (saved,), "other_ns": (flushed, printed)}
    )
    one, logs = find(blocking_checkpoint, analysis), find(logging_overhead, analysis)
    rank = analysis.lead
    assert one.cost_ns == round(rank.mean["checkpoint_ns"] + 0.5 * rank.mean["other_ns"])
    assert one.evidence["around_the_save_ns"] == round(10 * 0.5 * rank.mean["other_ns"])
    assert [where.line for where in logs.where] == [60]


def test_a_save_in_the_loop_itself_takes_nothing_else_of_it() -> None:
    saved = make_line(80, 1.0, "torch.save(state, path)")
    lines = {
        "checkpoint_ns": (saved,),
        "backward_ns": (make_line(50, 1.0, "loss.backward()"),),
        "other_ns": (make_line(60, 1.0, "print(loss.item())"),),
    }
    analysis = make_analysis(columns=saves(10, 50_000_000), other=0.2, lines=lines)
    one = find(blocking_checkpoint, analysis)
    assert one.cost_ns == round(analysis.lead.mean["checkpoint_ns"])


def test_saves_in_the_last_third_alone_are_told_by_their_mean_interval() -> None:
    happens = [int(i >= 68 and i % 4 == 3) for i in range(100)]
    columns = {"checkpoints": happens, "checkpoint_ns": [100_000_000 * h for h in happens]}
    one = find(blocking_checkpoint, make_analysis(columns=columns))
    assert one.evidence["steps_per_checkpoint"] == 12.5


def on_a_busy_machine(every: int, each_ns: int, steps: int = 100) -> Finding | Skipped | None:
    """The steps are as uneven as where other programs come and go: their noise is a fifth of the step."""
    columns = {name: values[:steps] for name, values in saves(every, each_ns).items()}
    columns["forward_ns"] = [2_000_000 if i < steps // 2 else 20_000_000 for i in range(steps)]
    return blocking_checkpoint.judge(make_analysis(columns=columns, steady_count=steps, step_noise_ratio=0.2))


def test_saves_that_recur_are_judged_however_uneven_the_steps_are() -> None:
    """Before: nothing where the step's noise exceeded the share, and a fault in the next run of the same script."""
    one = on_a_busy_machine(4, 10_000_000)
    assert isinstance(one, Finding)
    assert 0.08 < (one.cost_ratio or 0.0) < 0.14
    few = on_a_busy_machine(4, 40_000_000, steps=14)
    assert isinstance(few, Finding)
    assert few.evidence["checkpoints"] == 3


def test_a_single_save_below_the_noise_is_said_to_be_not_judged() -> None:
    one = on_a_busy_machine(100, 350_000_000)
    assert isinstance(one, Skipped)
    assert on_a_busy_machine(100, 50_000_000) is None


@pytest.mark.parametrize(
    ("analysis", "told"),
    [
        pytest.param(
            make_analysis(
                columns=saves(10, 100_000_000),
                lines={"checkpoint_ns": (make_line(80, 1.0, "torch.save(state, path)"),)},
            ),
            {"where.0.line": 80, "severity": Severity.HIGH, "saving.mid_ratio": pytest.approx(1 / 3, abs=0.001)},
            id="saving_every_ten_steps_is_a_fault_with_its_interval",
        ),
        pytest.param(
            make_analysis(columns=saves(50, 50_000_000)),
            {"severity": Severity.LOW},
            id="a_checkpoint_of_a_few_percent_is_at_most_low",
        ),
        pytest.param(make_analysis(), None, id="a_run_that_saves_nothing_has_no_fault"),
        pytest.param(make_analysis(columns=saves(50, 2_000_000)), None, id="a_quick_save_is_nothing"),
    ],
)
def test_what_is_told(analysis: Analysis, told: Told) -> None:
    check(blocking_checkpoint, analysis, told)
