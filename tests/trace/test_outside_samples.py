"""Samples that were read from outside stand in a recording where its own are fewer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.analyze.lines import describe_inside_samples
from hotloop.core.recording import FIELD, STEP_FIELDS
from hotloop.trace.outside_samples import add_outside_samples
from hotloop.trace.recording import ProcessRecording

PLACE = [["/t.py", 3, "f"]]


def recording(*facts: dict[str, Any]) -> ProcessRecording:
    rows = np.zeros((4, len(STEP_FIELDS)), dtype=np.int64)
    rows[:, FIELD["index"]] = range(10, 14)
    rows[:, FIELD["end_ns"]] = [100, 200, 300, 400]
    return ProcessRecording(
        path=Path("p.hlr"),
        process={},
        rows=rows,
        facts=facts,
        lost_rows=0,
        lost_facts=0,
        thinned_facts=0,
        closed=True,
        trouble="",
    )


def own(count: int) -> dict[str, Any]:
    return {"kind": "samples", "rows": [10, 13], "counts": [["other_ns", PLACE, "", count]], "late": [0], "taken": [0]}


def beside(folder: Path, *lines: dict[str, Any]) -> Path:
    (folder / "p.samples").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "sam')
    return folder / "p.hlr"


def outside(count: int) -> dict[str, Any]:
    counts = [["forward_ns", PLACE, "torch:f", count]]
    return {"kind": "samples", "from_ns": 150, "until_ns": 350, "counts": counts, "cpu_ns": 5_000}


def of_kind(process: ProcessRecording, kind: str) -> list[dict[str, Any]]:
    return [fact for fact in process.facts if fact["kind"] == kind]


def test_the_outside_samples_replace_fewer_own_ones(tmp_path: Path) -> None:
    overhead = {"kind": "overhead", "sampler_ns": 1_000}
    merged = add_outside_samples(recording(own(3), overhead), beside(tmp_path, outside(9)))
    (samples,) = of_kind(merged, "samples")
    assert (samples["outside"], samples["rows"], samples["counts"][0][3]) == (True, [11, 13], 9)
    assert of_kind(merged, "overhead")[0]["sampler_ns"] == 6_000
    assert describe_inside_samples(merged.facts) is None


def test_more_own_samples_stay(tmp_path: Path) -> None:
    merged = add_outside_samples(recording(own(30)), beside(tmp_path, outside(9)))
    assert [fact["counts"][0][3] for fact in of_kind(merged, "samples")] == [30]


def test_why_it_was_refused_reaches_the_report(tmp_path: Path) -> None:
    refused = {"kind": "refused", "reason": "Operation not permitted"}
    merged = add_outside_samples(recording(own(3)), beside(tmp_path, refused))
    told = describe_inside_samples(merged.facts)
    assert told is not None
    assert told.startswith("stacks were sampled inside the training process (Operation not permitted):")


def test_samples_that_name_no_time_belong_to_no_row(tmp_path: Path) -> None:
    line = outside(9) | {"from_ns": None, "until_ns": "late"}
    merged = add_outside_samples(recording(), beside(tmp_path, line))
    assert of_kind(merged, "samples")[0]["rows"] == []
