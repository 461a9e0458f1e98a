"""A quick part of the battery: trainings that must end the same, with the same numbers and no landmine touched."""

import sys
from pathlib import Path

import pytest

from tests.harm import battery

pytest.importorskip("torch")
HOTLOOP = Path(sys.executable).parent / "hotloop"
QUICK = (
    "deep_modules",
    "fd_closerange",
    "keyword_names",
    "mine_arguments",
    "mine_dict_keys",
    "mine_metaclass_containers",
    "mode_counts_operators",
    "signal_masks",
    "swap_tensors",
)


@pytest.mark.parametrize("name", QUICK)
def test_a_training_is_as_alone(name: str) -> None:
    kind = battery.read_kind(battery.SCRIPTS / f"{name}.py", sys.executable)
    row = battery.try_kind(kind, str(HOTLOOP), pairs=1, quick=True)
    assert not row["harm"]


def test_every_script_says_what_it_does() -> None:
    for path in battery.find_scripts(None):
        assert '"""' in path.read_text().split("\nimport ")[0], path.name
    assert len(battery.find_scripts(None)) >= 80


def test_standard_error_may_hold_more_lines() -> None:
    assert battery.missing_lines(["a", "b"], ["x", "a", "y", "b"]) == []
    assert battery.missing_lines(["a", "b"], ["b", "a"]) == ["b"]


def test_limits() -> None:
    step, cpu, memory = (battery.limit_of(name) for name in ("longest_ms", "cpu_s", "end_mb"))
    assert (step(10), step(1000)) == (110, 1500)
    assert cpu(10) == pytest.approx(10.6)
    assert memory(300) == 320
    assert battery.limit_of("loss") is battery.limit_of("s") is None
