"""Goals of a tuning: memory by its own pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from hotloop.change.tune.goals import compare_memory
from hotloop.change.tune.search import Candidate, combine, list_memory_candidates
from hotloop.change.tune.trials import Ran
from hotloop.core.findings import Numerics
from hotloop.core.measurement import Measurement
from hotloop.core.strategy import Choice, Strategy
from hotloop.core.tuning import TrialVerdict
from tests.tune.records import Machine, best_id, candidate, measurement, ok, tune
from tests.tune.records import applied as record_of

MIB = 1 << 20


def peak(peak_bytes: int | None, step_ns: float = 1e6, names: tuple[str, ...] = ()) -> Measurement:
    one = measurement(step_ns, names, peak_bytes=peak_bytes, rank_peak_bytes=peak_bytes, rank_count=1)
    return replace(one, applied=tuple(record_of(name) for name in names))


class TwoSided(Machine):
    """Multiplies step time and peak memory by each technique's factors, with a little noise of either."""

    def __init__(self, factors: Mapping[str, tuple[float, float]]) -> None:
        super().__init__()
        self.factors = factors

    def make(self, names: tuple[str, ...]) -> Ran:
        step_ns, peak_bytes = 1e6 * self.random.lognormvariate(0, 0.005), 1e9 * self.random.lognormvariate(0, 0.001)
        for name in names:
            step_ns, peak_bytes = step_ns * self.factors[name][0], peak_bytes * self.factors[name][1]
        return ok(peak(round(peak_bytes), step_ns, names))


# -- memory ------------------------------------------------------------------------------------------------------------


def test_memory_is_proven_by_pairs_of_peaks_and_its_price_in_time_is_told() -> None:
    machine = TwoSided({"small": (1.25, 0.5), "large": (0.5, 1.4), "same": (1.0, 1.0)})
    exact = [candidate(name, numerics=Numerics.EXACT) for name in machine.factors]
    campaign, found = tune(machine, exact, observed=[peak(1000 * MIB)], goal="memory")
    assert {name: trial.verdict for name, trial in found.items()} == {
        "small": TrialVerdict.SMALLER,
        "large": TrialVerdict.LARGER,
        "same": TrialVerdict.CANNOT_TELL,
    }
    small = found["small"]
    assert small.memory["n"] == small.n == 4
    assert small.memory["saving_ratio"] == pytest.approx(2.0, rel=0.01)
    assert 1.9 < float(str(small.memory["low_ratio"])) < 2.0 < float(str(small.memory["high_ratio"])) < 2.1
    assert small.speedup_ratio == pytest.approx(0.8, rel=0.02)
    assert best_id(campaign) == "small"


def test_a_peak_that_varies_by_itself_is_no_saving() -> None:
    peaks = [900, 1100, 950, 1050, 1000, 1080]
    machine = [peak(one * MIB) for one in peaks]
    fixed = [peak(960 * MIB)] * 4
    found = compare_memory([peak(1000 * MIB)] * 4, fixed, machine, level=0.01)
    assert found.verdict is TrialVerdict.CANNOT_TELL
    assert found.noise_ratio is not None
    assert found.noise_ratio > 0.05
    silent = compare_memory([peak(1000 * MIB)] * 4, fixed, [], level=0.01)
    assert silent.verdict is TrialVerdict.FASTER


def test_unseen_peaks_end_a_memory_comparison_and_win_nothing() -> None:
    found = compare_memory([peak(None)], [peak(None)], [], level=0.01)
    assert (found.decided, found.verdict, found.reason) == (True, TrialVerdict.CANNOT_TELL, "peak memory is unknown")


def test_two_forms_of_one_technique_are_not_combined() -> None:
    forms = [
        candidate("x", id=f"x {k}", strategy=Strategy(choices=(Choice(technique="x", settings={"k": k}),)))
        for k in (1, 2)
    ]
    assert combine(forms, lambda s: s) is None
    together = combine([*forms, candidate("y")], lambda s: s)
    assert together is not None
    assert together.id == "x 1 + y"


def test_memory_tries_recomputation_first_and_nothing_that_cannot_act_here() -> None:
    from hotloop.change.apply import TECHNIQUES

    pruned = candidate("fused-optimizer", why_not="not tried: the forecast saving is at most 0.1% of the time")
    techniques = dict(TECHNIQUES.items())

    def choose(*, rank_count: int) -> tuple[Candidate, ...]:
        return list_memory_candidates([pruned], techniques, lambda s: s, rank_count=rank_count)

    found = choose(rank_count=2)
    ids = [one.id for one in found]
    assert ids[0] == "activation-checkpointing"
    assert "activation-checkpointing (keeps matmuls)" in ids
    assert "accumulation" in ids
    assert ids[-1] == "fused-optimizer"
    assert found[-1].why_not == pruned.why_not
    assert len(set(ids)) == len(ids)
    assert not any(one.why_not for one in found if one.id == "fsdp2")
    alone = {one.id: one.why_not for one in choose(rank_count=1)}
    assert alone["activation-checkpointing"] == ""
