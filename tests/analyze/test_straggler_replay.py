"""What stragglers cost, against steps computed by hand and a published analysis."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from hotloop.analyze.straggler_replay import replay_stragglers
from hotloop.cli import main
from hotloop.core.errors import TraceError
from hotloop.core.stragglers import StragglerReport, stragglers_from_json, stragglers_to_json
from hotloop.trace.operation_table import read_operation_table

SHARED = Path(__file__).parents[3] / "shared" / "straggler"
NAMES = ("dp_rank", "stage", "step", "optype", "start_ts", "duration", "mc", "gmc", "mb_id")
Row = tuple[int, int, int, str, float, float, int, int, int]


def write_table(path: Path, rows: list[Row]) -> Path:
    columns = dict(zip(NAMES, zip(*rows, strict=True), strict=True))
    columns["rank"] = tuple(0 if row[1] is None else 2 * row[1] + row[0] for row in rows)
    pyarrow.parquet.write_table(pyarrow.table({name: list(values) for name, values in columns.items()}), path)
    return path


def replay(path: Path) -> StragglerReport:
    return replay_stragglers(read_operation_table(path))


def two_ranks(step: int = 0) -> list[Row]:
    """Two data-parallel ranks, of which the first computes half as fast; the reduction waits for it."""
    rows: list[Row] = []
    for rank, pace in ((0, 2.0), (1, 1.0)):
        end = 3 * pace
        rows += [
            (rank, 0, step, "forward-compute", 0.0, pace, 0, 0, 0),
            (rank, 0, step, "backward-compute", pace, 2 * pace, 0, 0, 0),
            (rank, 0, step, "grads-reduce-scatter", end, 6.5 - end, 0, -1, -1),
            (rank, 0, step, "optimizer", 6.5, 0.1, -1, -1, -1),
        ]
    return rows


def two_stages(step: int, last_forward: float) -> list[Row]:
    """One micro-batch through two stages; a transfer takes 0.1, and receives are posted at the start."""
    there = 1.1 + last_forward
    return [
        (0, 0, step, "forward-compute", 0.0, 1.0, 0, 0, 0),
        (0, 0, step, "forward-send", 1.0, 0.1, -1, -1, -1),
        (0, 1, step, "forward-recv", 0.0, 1.1, -1, -1, -1),
        (0, 1, step, "forward-compute", 1.1, last_forward, 0, 1, 0),
        (0, 1, step, "backward-compute", there, 2.0, 0, 1, 0),
        (0, 1, step, "backward-send", there + 2, 0.1, -1, -1, -1),
        (0, 0, step, "backward-recv", 1.2, there + 0.9, -1, -1, -1),
        (0, 0, step, "backward-compute", there + 2.1, 2.0, 0, 0, 0),
    ]


def test_a_slow_rank_by_hand(tmp_path: Path) -> None:
    report = replay(write_table(tmp_path / "t.parquet", two_ranks()))
    # As it was: 2 + 4 + 0.5 + 0.1. Even: a forward of 1.5, a backward of 3, and the same end.
    assert report.slowdown_ratio == pytest.approx(6.6 / 5.1)
    assert {one.name: one.slowdown_ratio for one in report.by_dp_rank} == pytest.approx({"0": 6.6 / 5.1, "1": 1.0})
    by_operation = {one.name: one.slowdown_ratio for one in report.by_operation}
    assert by_operation["forward-compute"] == pytest.approx(5.6 / 5.1)
    assert by_operation["backward-compute"] == pytest.approx(6.1 / 5.1)
    assert by_operation["optimizer"] == pytest.approx(1.0)
    assert (report.slowest_workers[0].dp_rank, report.slowest_workers[0].stage) == (0, 0)
    assert report.slowest_workers_ratio == pytest.approx(1.0)
    assert report.last_stage_ratio is None  # there is one stage
    assert "data-parallel rank 0 stage 0" in report.verdict


def test_a_pipeline_by_hand(tmp_path: Path) -> None:
    rows = [*two_stages(1, 1.0), *two_stages(2, 3.0)]
    report = replay(write_table(tmp_path / "t.parquet", rows))
    # Forwards of 1, 1, 1 and 3 have a mean of 1.5: 1.5 + 0.1 + 1.5 + 2 + 0.1 + 2.
    assert [step.recorded_ns for step in report.steps] == [6_200_000_000, 8_200_000_000]
    assert [step.replayed_ns for step in report.steps] == [6_200_000_000, 8_200_000_000]
    assert [step.slowdown_ratio for step in report.steps] == pytest.approx([6.2 / 7.2, 8.2 / 7.2])
    assert report.launch_slowdown_ratio == pytest.approx(1.0)
    assert {one.name: one.slowdown_ratio for one in report.by_stage} == pytest.approx({"1": 7.7 / 7.2, "0": 6.7 / 7.2})


def interleaved(records_ends: bool) -> list[Row]:
    """One micro-batch through two stages of two chunks each: forwards of 1, backwards of 2, transfers of 0.1.

    With ``records_ends`` the profiler wrote a transfer of no length for the computations at the model's ends too.
    """
    rows: list[Row] = []
    end = 0.0
    for direction, length, chunks in (("forward", 1.0, (0, 1, 2, 3)), ("backward", 2.0, (3, 2, 1, 0))):
        for chunk in chunks:
            stage, is_first, is_last = chunk % 2, chunk == chunks[0], chunk == chunks[-1]
            if not is_first or records_ends:
                took = 0.0 if is_first else 0.1
                rows.append((0, stage, 0, f"{direction}-recv", end, took, -1, -1, -1))
                end += took
            rows.append((0, stage, 0, f"{direction}-compute", end, length, chunk // 2, chunk, 0))
            end += length
            if not is_last or records_ends:
                rows.append((0, stage, 0, f"{direction}-send", end, 0.0 if is_last else 0.1, -1, -1, -1))
    return rows


@pytest.mark.parametrize("records_ends", [False, True])
def test_an_interleaved_pipeline_by_hand(tmp_path: Path, records_ends: bool) -> None:
    report = replay(write_table(tmp_path / "t.parquet", interleaved(records_ends)))
    assert report.recorded_ns == report.replayed_ns == 12_600_000_000  # 4 forwards, 4 backwards, 6 transfers
    assert report.launch_slowdown_ratio == pytest.approx(1.0)


def test_a_step_whose_transfers_do_not_match_is_left_out_and_named(tmp_path: Path) -> None:
    rows = [*two_stages(1, 1.0), *two_stages(2, 1.0)[1:]]
    report = replay(write_table(tmp_path / "t.parquet", rows))
    assert (report.step_count, report.left_out_steps) == (1, (2,))
    with pytest.raises(TraceError, match=r"no step can be replayed: .* stage 0 has 1 forward-send for 0 computations"):
        replay(write_table(tmp_path / "t.parquet", two_stages(2, 1.0)[1:]))


def test_the_report_survives_its_json(tmp_path: Path) -> None:
    report = replay(write_table(tmp_path / "t.parquet", two_ranks()))
    assert stragglers_from_json(json.loads(json.dumps(stragglers_to_json(report)))) == report


def change(column: int, value: object) -> list[Row]:
    rows = two_ranks()
    rows[1] = (*rows[1][:column], value, *rows[1][column + 1 :])  # type: ignore[assignment]
    return rows


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (change(3, "coffee"), "unknown optype 'coffee'"),
        (change(4, float("nan")), "'start_ts' holds a time that is not finite"),
        (change(5, -1.0), "'duration' holds a time"),
        (change(0, -1), "'dp_rank' holds -1"),
        (change(1, None), "'stage' has 1 missing values"),
    ],
)
def test_a_table_that_states_the_impossible_is_refused(tmp_path: Path, rows: list[Row], says: str) -> None:
    with pytest.raises(TraceError, match=says):
        read_operation_table(write_table(tmp_path / "t.parquet", rows))


def test_another_file_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.parquet").write_text("no table")
    assert main(["trace", str(tmp_path / "t.parquet")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    pyarrow.parquet.write_table(pyarrow.table({"step": [1]}), tmp_path / "t.parquet")
    assert main(["trace", str(tmp_path / "t.parquet")]) == 2
    assert "no column 'rank'" in capsys.readouterr().err


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_table(tmp_path / "t.parquet", two_ranks())
    assert main(["trace", str(path), "--html", str(tmp_path / "t.html")]) == 1
    shown = capsys.readouterr().out
    assert "stragglers cost 23% of the step" in shown
    assert "backward-compute" in shown
    assert "stragglers cost 23%" in (tmp_path / "t.html").read_text()
    assert main(["trace", str(path), "--exit-zero", "-q"]) == 0


@pytest.mark.parametrize("name", ["AR", "ST"])
def test_the_published_analysis(name: str) -> None:
    if not SHARED.is_dir():
        pytest.skip("no published straggler traces")
    published, mw, ms = (json.loads((SHARED / f"{kind}-{name}.json").read_text()) for kind in ("result", "mw", "ms"))
    report = replay(SHARED / f"trace-{name}.parquet")
    assert report.slowdown_ratio == pytest.approx(published["blocking_slowdown"], abs=1e-6)
    assert report.launch_slowdown_ratio == pytest.approx(published["launch_slowdown"], abs=1e-6)
    assert report.slowest_workers_ratio == pytest.approx(mw["Mw"], abs=1e-6)
    assert report.last_stage_ratio == pytest.approx(ms["Ms"], abs=1e-5)
    for ours, theirs in ((report.by_operation, "optype"), (report.by_stage, "stage"), (report.by_dp_rank, "dp_rank")):
        found = {one.name: one.slowdown_ratio for one in ours}
        assert found == pytest.approx(published[f"blocking_decompose_by_{theirs}"], abs=1e-6)
    assert {str(one.step): one.recorded_ns / 1e9 for one in report.steps} == pytest.approx(
        published["step_t_base"], abs=1e-5
    )
