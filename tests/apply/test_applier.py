"""The applier: order, records, failures that never leave it, and settings that are refused before anything runs."""

from typing import Any, ClassVar

import pytest

from hotloop.change.apply import TECHNIQUES, check_strategy
from hotloop.change.apply.applier import Applier, make_context
from hotloop.core.findings import Numerics, Safety, Where
from hotloop.core.strategy import Choice, Strategy, StrategyError
from hotloop.core.techniques import Applied, NotApplicable, Setting, Stage, Technique


class Late(Technique):
    id = "late"
    summary = "late"
    numerics = Numerics.EXACT
    safety = Safety.AUTO
    stage = Stage.LOOP
    settings = (Setting(name="n", kind=int, default=1, help="a number", least=1, most=4),)
    calls: ClassVar[list[str]] = []

    def change_model(self, model: Any, settings: Any, context: Any) -> Applied:
        self.calls.append(f"late {settings['n']}")
        return Applied(text="late", undo=lambda: self.calls.append("undone"))


class Early(Late):
    id = "early"
    stage = Stage.RUNTIME
    conflicts = ("other",)

    def change_model(self, model: Any, settings: Any, context: Any) -> Any:
        self.calls.append("early")
        if model.broken:
            raise RuntimeError("broken")
        return NotApplicable(why="too early")

    def change_optimizer(self, optimizer: Any, settings: Any, context: Any) -> Any:
        return None


class Other(Late):
    id = "other"


class Model:
    broken = False


TABLE = {one.id: one for one in (Late(), Early(), Other())}


def applier_of(*ids: str, **options: Any) -> Applier:
    strategy = Strategy(choices=tuple(Choice(technique=one) for one in ids))
    return Applier(strategy, TABLE, make_context(strategy, from_outside=True), **options)


def test_stages_order_the_techniques_and_each_module_is_met_once() -> None:
    Late.calls.clear()
    applier = applier_of("late", "early")
    model = Model()
    applier.model_met(model)
    applier.model_met(model)
    assert Late.calls == ["early", "late 1"]
    assert [(r.technique, r.status, r.detail) for r in applier.records] == [
        ("early", "not applicable", "too early"),
        ("late", "applied", "late"),
    ]
    applier.undo()
    assert Late.calls[-1] == "undone"


def test_a_technique_that_raises_is_recorded_and_the_others_act() -> None:
    applier = applier_of("late", "early")
    model = Model()
    model.broken = True
    assert applier.model_met(model) is model
    assert [(r.technique, r.status, r.detail) for r in applier.records] == [
        ("early", "failed", "RuntimeError: broken"),
        ("late", "applied", "late"),
    ]


def test_what_was_never_met_is_said() -> None:
    applier = applier_of("late")
    applier.finish()
    assert applier.records[0].detail == "the script called no module with gradients"


@pytest.mark.parametrize(
    ("place", "acts"),
    [
        ("train.py:7", True),
        ("src/train.py:7", True),
        ("train.py:8", False),
        ("rain.py:7", False),
        ("x/train.py:7", False),
    ],
)
def test_a_choice_with_a_place_acts_there_only(place: str, acts: bool) -> None:
    strategy = Strategy(choices=(Choice(technique="late", where=(place,)),))
    where = Where(file="/home/me/src/train.py", line=7, function="main")
    applier = Applier(strategy, TABLE, make_context(strategy, from_outside=True), find_place=lambda: where)
    applier.model_met(Model())
    assert bool(applier.records) is acts


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ((Choice(technique="lade"),), "unknown technique 'lade'; did you mean 'late'?"),
        ((Choice(technique="late", settings={"m": 1}),), "techniques.late.m: unknown setting"),
        ((Choice(technique="late", settings={"n": "1"}),), "techniques.late.n is '1': write a whole number"),
        ((Choice(technique="late", settings={"n": True}),), "techniques.late.n is True"),
        ((Choice(technique="late", settings={"n": 0}),), "techniques.late.n is 0: the minimum is 1"),
        ((Choice(technique="late", settings={"n": 5}),), "the maximum is 4"),
        ((Choice(technique="early"), Choice(technique="other")), "early and other conflict"),
    ],
)
def test_impossible_strategies_are_refused_with_their_key(choices: tuple[Choice, ...], said: str) -> None:
    with pytest.raises(StrategyError) as raised:
        check_strategy(Strategy(choices=choices), TABLE, source="fast.toml")
    assert said in str(raised.value)
    assert "fast.toml" in str(raised.value)


def test_every_technique_has_a_manual_with_its_headings() -> None:
    assert TECHNIQUES
    for technique in TECHNIQUES.values():
        headings = [line[3:] for line in technique.manual.splitlines() if line.startswith("## ")]
        assert headings == list(Technique.MANUAL_HEADINGS), technique.id
