"""What the rules prescribe is a technique with these settings, wherever its file exists."""

import ast
from pathlib import Path
from typing import Any, ClassVar

import pytest

import hotloop.judge.diagnose.rules
import hotloop.measure.bench.probe
from hotloop.change.apply import TECHNIQUES, check_strategy
from hotloop.core.analysis import Forecast
from hotloop.core.findings import Saving

from .small import strategy_of

CHOSEN_APART = ("drop-scaler",)
"""Its rule chooses between it and a change by hand, with settings of its own, in two conditions."""


def settings_in(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Technique ids with the literal settings that stand beside them in a source file."""
    found: list[tuple[str, dict[str, Any]]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            words = {one.arg: one.value for one in node.keywords}
            names = [
                one.value
                for one in ast.walk(words.get("technique", ast.Constant(None)))
                if isinstance(one, ast.Constant)
            ]
            tables = [one for one in ast.walk(words.get("settings", ast.Dict([], []))) if isinstance(one, ast.Dict)]
        elif isinstance(node, ast.Tuple):
            names = [one.value for one in node.elts if isinstance(one, ast.Constant)]
            tables = [one for one in node.elts if isinstance(one, ast.Dict)]
        else:
            continue
        for name in names:
            for table in tables:
                if (
                    name in TECHNIQUES
                    and name not in CHOSEN_APART
                    and all(isinstance(value, ast.Constant) for value in table.values)
                ):
                    found.append((str(name), ast.literal_eval(table)))
    return found


SOURCES = [
    Path(hotloop.measure.bench.probe.__file__),
    *sorted(Path(hotloop.judge.diagnose.rules.__path__[0]).glob("*.py")),
]
PRESCRIBED = sorted({(name, tuple(settings.items())) for path in SOURCES for name, settings in settings_in(path)})


@pytest.mark.parametrize(("technique", "settings"), PRESCRIBED)
def test_a_prescribed_fix_is_a_valid_strategy(technique: str, settings: tuple[tuple[str, Any], ...]) -> None:
    assert check_strategy(strategy_of(technique, **dict(settings)), TECHNIQUES)


def test_a_forecast_is_what_the_probe_measured_and_none_without() -> None:
    class Lead:
        forecasts: ClassVar[dict[str, Forecast]] = {
            "fused-optimizer": Forecast(
                technique="fused-optimizer", saving_low_ratio=0.1, saving_mid_ratio=0.2, saving_high_ratio=0.3,
                settings={"fused": True}, evidence={},
            )
        }  # fmt: skip

    class Analysis:
        lead = Lead()

    analysis: Any = Analysis()
    saving = TECHNIQUES["fused-optimizer"].forecast(analysis, {})
    assert isinstance(saving, Saving)
    assert (saving.low_ratio, saving.mid_ratio, saving.high_ratio) == (0.1, 0.2, 0.3)
    assert TECHNIQUES["compile-model"].forecast(analysis, {}) is None
