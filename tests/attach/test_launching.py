"""What a recorded command finds in its environment, and what it leaves."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotloop.agent.attach.child import ATTACH_VARIABLE, SITE
from hotloop.agent.attach.launching import launch_recorded, prepare_environment
from hotloop.core.recording import OUTCOME_FILE
from hotloop.core.strategy import Strategy

COLLECTOR: Any = SimpleNamespace(address="name", token="secret")


def test_the_agent_is_told_where_its_events_go() -> None:
    given = {"HOME": "/x", "PYTHONPATH": "/mine"}
    made = prepare_environment(given, Path("/run"), {"numbers": True}, COLLECTOR)
    told = json.loads(made.pop(ATTACH_VARIABLE))
    assert {k: told[k] for k in ("run", "numbers", "address", "token")} == {
        "run": "/run", "numbers": True, "address": "name", "token": "secret",
    }  # fmt: skip
    assert "strategy" not in told
    assert made == {**given, "PYTHONPATH": f"{SITE}{os.pathsep}/mine"}
    assert given == {"HOME": "/x", "PYTHONPATH": "/mine"}


def test_a_strategy_goes_along() -> None:
    made = prepare_environment({}, Path("/run"), {}, COLLECTOR, Strategy(name="plain"))
    assert json.loads(made[ATTACH_VARIABLE])["strategy"]["name"] == "plain"


def test_a_command_that_trains_nothing_ends_as_it_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder, end = launch_recorded([sys.executable, "-c", "raise SystemExit(3)"], "quick", dict(os.environ), {})
    assert end.exit_code == 3
    assert json.loads((folder / OUTCOME_FILE).read_text())["exit_code"] == 3
    assert list((folder / "processes").iterdir()) == []
