"""Who used the cores while a training ran: a warning where others held them, and none where there was room."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from hotloop.core.recording import FIELD, STEP_FIELDS
from hotloop.evidence.analyze.measurement import steady_span_s
from hotloop.evidence.telemetry.host_load import HostLoad, describe_load, load_between, read_host_load


def load(others_ratio: float, idle_cores: float, stolen_ratio: float | None = 0.0) -> HostLoad:
    return HostLoad(others_ratio=others_ratio, stolen_ratio=stolen_ratio, idle_cores=idle_cores, cores_count=2)


def test_others_that_hold_the_cores_are_told_with_what_it_means_for_forecasts() -> None:
    (said,) = describe_load(load(0.38, 0.1))
    assert said.level == "warning"
    assert said.message.startswith("other programs used 38% of the 2 cores' time during the steady steps: ")
    assert "half of their forecast" in said.message


@pytest.mark.parametrize("quiet", [None, load(0.05, 0.0), load(0.3, 1.2)])
def test_few_others_or_a_free_core_are_no_warning(quiet: HostLoad | None) -> None:
    assert describe_load(quiet) == ()


def test_a_span_outside_the_samples_is_unknown() -> None:
    samples = [(10.0, 0.0, 0.0, 0.0, 0.0), (20.0, 10.0, 20.0, 5.0, 0.0)]
    assert load_between(samples, 5.0, 15.0) is None
    assert load_between(samples[:1], 10.0, 10.5) is None
    found = load_between(samples, 12.0, 18.0)
    assert found is not None
    assert found.others_ratio == pytest.approx(0.25)


def test_only_the_steady_steps_count(tmp_path: Path) -> None:
    samples = [[0.0, 0.0, 0.0, 0.0, 0.0], [5.0, 10.0, 10.0, 0.0, 0.0], [10.0, 15.0, 20.0, 5.0, 0.0]]
    (tmp_path / "cores.json").write_text(json.dumps({"samples": samples}))
    found = read_host_load(tmp_path / "cores.json", _steady_span_s(start_s=5.0, end_s=10.0))
    assert found is not None
    assert found.others_ratio == 0.0


def _steady_span_s(start_s: float, end_s: float) -> tuple[float, float] | None:
    """Of a run whose only process has one warm-up row before ``start_s``."""
    rows = np.zeros((2, len(STEP_FIELDS)), dtype=np.int64)
    rows[1, FIELD["start_ns"]], rows[1, FIELD["end_ns"]] = int(start_s * 1e9), int(end_s * 1e9)
    process = SimpleNamespace(process={"pid": 7, "anchor_wall_s": 0.0}, rows=rows)
    lead = SimpleNamespace(identity=(None, 7, None, None, 0.0), rank=SimpleNamespace(warmup_count=1))
    training = SimpleNamespace(lead=lead, processes=(lead,), hosts=())
    return steady_span_s(cast("Any", training), [cast("Any", process)])


def test_own_use_is_of_the_cores_that_the_training_may_use() -> None:
    """8 of 40 core seconds in 10 s: a fifth of four cores, and 40 % of the two that a quota allows."""
    samples = [(0.0, 0.0, 0.0, 0.0, 0.0), (10.0, 12.0, 40.0, 8.0, 0.0)]
    whole, quota = load_between(samples, 0.0, 10.0), load_between(samples, 0.0, 10.0, allowed_cores=2)
    assert whole is not None
    assert quota is not None
    assert (whole.own_ratio, quota.own_ratio) == (0.2, 0.4)
