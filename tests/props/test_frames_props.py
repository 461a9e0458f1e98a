"""Laws of frames: what was written comes back, and damage costs only what it hit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotloop.agent.replay.recording_writer import merge_rows
from hotloop.core.errors import RecordingError
from hotloop.core.frames import KIND_FACT, KIND_ROW, decode_frames, encode_frame
from hotloop.core.recording import CLOSED_BY_OPTIMIZER, FIELD, STEP_FIELDS, UNKNOWN
from hotloop.evidence.trace.recording import RecordingTail, read_process
from tests.recordings import InstantWriter

PAYLOADS = st.lists(st.tuples(st.sampled_from([KIND_ROW, KIND_FACT]), st.binary(max_size=200)), max_size=20)


@given(PAYLOADS, st.data())
def test_a_cut_leaves_a_prefix(payloads: list[tuple[int, bytes]], data: st.DataObject) -> None:
    whole = b"".join(encode_frame(kind, payload) for kind, payload in payloads)
    for cut in (len(whole), data.draw(st.integers(0, len(whole)))):
        found = [(frame.kind, frame.payload) for frame in decode_frames(whole[:cut])]
        assert found == payloads[: len(found)]
    assert len(list(decode_frames(whole))) == len(payloads)


ROW_VALUES = st.lists(st.integers(0, 1 << 40), min_size=len(STEP_FIELDS), max_size=len(STEP_FIELDS))


@given(st.lists(ROW_VALUES, min_size=3, max_size=3))
def test_merging_does_not_depend_on_grouping(rows: list[list[int]]) -> None:
    a, b, c = rows
    assert merge_rows(merge_rows(a, b), c) == merge_rows(a, merge_rows(b, c))


@given(ROW_VALUES, ROW_VALUES, st.sampled_from(["samples", "device_forward_ns", "recompute_ns"]))
def test_a_sum_with_an_unknown_part_is_unknown(first: list[int], second: list[int], name: str) -> None:
    second[FIELD[name]] = UNKNOWN
    assert merge_rows(first, second)[FIELD[name]] == UNKNOWN
    assert merge_rows(second, first)[FIELD[name]] == UNKNOWN
    assert merge_rows(first, second)[FIELD["forward_ns"]] == first[FIELD["forward_ns"]] + second[FIELD["forward_ns"]]


@given(ROW_VALUES, ROW_VALUES, st.sampled_from(["padded_tokens", "tokens", "padding_tokens", "longest_tokens"]))
def test_a_sum_of_tokens_is_of_the_rows_that_hold_them(first: list[int], second: list[int], name: str) -> None:
    whole = merge_rows(first, second)[FIELD[name]]
    assert whole == first[FIELD[name]] + second[FIELD[name]]
    second[FIELD[name]] = UNKNOWN
    assert merge_rows(first, second)[FIELD[name]] == first[FIELD[name]]
    assert merge_rows(second, first)[FIELD[name]] == first[FIELD[name]]


def make_row(index: int) -> list[int]:
    row = [0] * len(STEP_FIELDS)
    row[FIELD["index"]] = index
    row[FIELD["rows_merged"]] = 1
    row[FIELD["closed_by"]] = CLOSED_BY_OPTIMIZER
    row[FIELD["start_ns"]], row[FIELD["end_ns"]] = 10 * index, 10 * index + 10
    row[FIELD["forward_ns"]] = 10
    return row


ROWS = 60


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "a.hlr"
    writer = InstantWriter(str(path), raw_rows=40, level_blocks=4)
    writer.write_fact({"kind": "process", "t": 0})
    for index in range(ROWS):
        writer.write_row(make_row(index))
        writer.write_fact({"kind": "gc", "t": index})
        writer.write_fact({"kind": "memory", "t": index, "text": "x" * index})
    writer.close()
    assert read_process(path).rows[:, FIELD["rows_merged"]].sum() == ROWS
    return path


MUTATIONS = st.lists(
    st.tuples(st.integers(0, 60_000), st.one_of(st.binary(min_size=1, max_size=8), st.integers(1, 4000).map(bytes))),
    min_size=1,
    max_size=6,
)


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutations=MUTATIONS, cut=st.one_of(st.none(), st.integers(0, 60_000)))
def test_damage_is_refused_or_costs_only_rows_that_are_counted(
    recording: Path, tmp_path: Path, mutations: list[tuple[int, bytes]], cut: int | None
) -> None:
    data = bytearray(recording.read_bytes())
    for at, change in mutations:
        data[at : at + len(change)] = change
    path = tmp_path / "damaged.hlr"
    path.write_bytes(bytes(data if cut is None else data[:cut]))
    try:
        found, (tail_rows, _) = read_process(path), RecordingTail(path).read()
    except RecordingError:
        return
    index, merged = found.rows[:, FIELD["index"]], found.rows[:, FIELD["rows_merged"]]
    assert (np.diff(index) > 0).all()
    assert (found.rows[:, FIELD["forward_ns"]] == 10 * merged).all()
    assert (found.rows[:, FIELD["start_ns"]] == 10 * index).all()
    # Nobody can know how many rows followed the last good one.
    assert merged.sum() + found.lost_rows <= ROWS
    assert tail_rows.tolist() == found.rows.tolist()
    known = {"process", "gc", "memory"}
    assert {fact["kind"] for fact in found.facts} <= known
