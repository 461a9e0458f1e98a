"""The patched source beside the unchanged one: reproduced, not reproduced, or not told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hotloop.change.apply import TECHNIQUES
from hotloop.change.tune.attempt import Wanted, check_patch, describe_unchecked, judge_gain, settle_patch
from hotloop.change.tune.patch import FileChange, LeftOut, Patch, diff_text
from hotloop.change.tune.statistics import compare
from hotloop.change.tune.study import Progress, Request
from hotloop.change.tune.trials import OOM, Budget, Ran
from hotloop.change.tune.tuner import Arm, Campaign, best_arm
from hotloop.core.findings import Where
from hotloop.core.tuning import PatchCheck
from tests.tune.records import LOSSES, FakeMachine, candidate, failed, measurement, ok, tune
from tests.tune.records import applied as record_of

PATCH = Patch(
    diff="d",
    files=(FileChange(path=Path("/p/train.py"), before=b"a", after=b"b", techniques=("a",)),),
    left_out=(),
)
BEFORE = describe_unchecked(PATCH, ("train.py",), "not yet")


FACTOR = 0.6
"""What the strategy leaves of a step's time."""


class PatchedMachine(FakeMachine):
    """The patched copy's steps take ``factor`` of the unchanged one's."""

    def __init__(self, factor: float = FACTOR, losses: tuple[float, ...] = LOSSES) -> None:
        super().__init__({"a": FACTOR})
        self.factor, self.losses = factor, losses
        self.patched_numbers: list[int] = []

    def run_patched(self, number: int) -> Ran:
        self.patched_numbers.append(number)
        self.now_s += 10.0
        return ok(measurement(self.factor * 1e6 * self.random.lognormvariate(0, 0.01), losses=self.losses))


def proven(machine: FakeMachine) -> tuple[Campaign, Arm]:
    """A campaign that has proven its one candidate, with time left."""
    campaign, _ = tune(machine, [candidate("a")])
    arm = best_arm(campaign)
    assert arm is not None
    return campaign, arm


def check(factor: float, losses: tuple[float, ...] = LOSSES, before: PatchCheck = BEFORE) -> PatchCheck:
    machine = PatchedMachine(factor, losses)
    return check_patch(*proven(machine), machine.run_patched, before)


def test_the_same_gain_is_reproduced_with_its_interval() -> None:
    found = check(0.6)
    assert found.status == "reproduced"
    assert found.speedup_ratio == pytest.approx(1 / 0.6, rel=0.03)
    assert found.strategy_ratio == pytest.approx(1 / 0.6, rel=0.03)
    assert found.n >= 4
    assert found.low_ratio is not None
    assert 1 < found.low_ratio < 1 / 0.6


@pytest.mark.parametrize(
    ("factor", "words"), [(1.0, "gains less than the strategy"), (1.4, "0.7"), (0.9, "gains less than the strategy")]
)
def test_another_gain_is_not_reproduced(factor: float, words: str) -> None:
    found = check(factor)
    assert (found.status, words in found.reason) == ("not reproduced", True), found.reason


def test_another_loss_is_not_reproduced_however_fast() -> None:
    found = check(0.3, tuple(9 * x for x in LOSSES))
    assert (found.status, found.n) == ("not reproduced", 1)
    assert "loss" in found.reason


def test_part_of_the_strategy_may_win_less() -> None:
    part = describe_unchecked(
        replace(PATCH, left_out=(LeftOut(technique="b", place=None, why="no form"),)), ("train.py",), ""
    )
    assert part.left_out == ("b",)
    found = check(0.9, before=part)
    assert (found.status, "only part" in found.reason) == ("reproduced", True)


def test_a_patched_copy_that_fails_is_not_reproduced() -> None:
    found = check_patch(*proven(PatchedMachine()), lambda number: failed(OOM), BEFORE)
    assert (found.status, found.reason) == ("not reproduced", "the patched copy: oom: why")


def test_without_time_it_is_not_checked_and_with_little_it_cannot_tell() -> None:
    for pairs, status in ((0, "not checked"), (2, "cannot tell")):
        machine = PatchedMachine()
        campaign, arm = proven(machine)
        campaign.budget = Budget(whole_s=machine.now_s + 20.0 * pairs + 1)
        found = check_patch(campaign, arm, machine.run_patched, BEFORE)
        assert (found.status, machine.patched_numbers, found.n) == (status, list(range(pairs)), pairs)


def test_a_wide_interval_cannot_tell() -> None:
    strategy = compare([2.0] * 4, [1.0, 1.01, 0.99, 1.0])
    loud = compare([2.0, 1.0, 1.5, 1.2], [1.0, 1.4, 0.9, 1.3])
    assert judge_gain(loud, Wanted(strategy=strategy, is_whole=True))[0] == "cannot tell"


def test_a_patch_that_was_never_run_says_so(tmp_path: Path) -> None:
    """As where a search was interrupted."""
    campaign, arm = proven(PatchedMachine())
    path = tmp_path / "train.py"
    path.write_text("import torch\no = torch.optim.AdamW(p)\n")
    place = Where(file=str(path), line=2, function="main")
    record = record_of("fused-optimizer", target="AdamW", where=place, values={"fused": True})
    arm.own[-1] = replace(arm.own[-1], applied=(record,))
    request = Request(
        command=("python", "train.py"),
        variables={},
        cwd=tmp_path,
        folder=tmp_path / "out",
        budget_s=1.0,
        goal="speed",
        techniques=dict(TECHNIQUES.items()),
    )
    progress = Progress(campaign=campaign)
    patch = settle_patch(progress, request)
    assert progress.check is not None
    assert (progress.check.status, progress.check.files) == ("not checked", ("train.py",))
    assert diff_text(patch, progress.check).startswith("hotloop: not checked: ")
    none = Progress()
    assert (settle_patch(none, request).files, none.check) == ((), None)
