"""hotloop diff, from files and run folders to text and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from real_traces import TRACES

from hotloop.cli import main
from tests.recordings import MS, event, record

needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces lie in ../shared/traces")
KEPT = ("--workers", "1")


def trace(wait_us: float = 400.0, steps: int = 4, device: bool = True, rank: int | None = None) -> dict[str, Any]:
    """Steps of a wait for data and a kernel of 500 us."""
    events, at = [], 0.0
    for step in range(steps):
        length = wait_us + 600.0
        events += [
            event("user_annotation", f"ProfilerStep#{step}", at, length),
            event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, wait_us),
            event("cpu_op", "aten::mm", at + wait_us, 20.0),
        ]
        if device:
            events += [
                event("cuda_runtime", "cudaLaunchKernel", at + wait_us, 5.0, correlation=step + 1),
                event("kernel", "gemm", at + wait_us + 10, 500, 7, device=0, stream=7, correlation=step + 1),
            ]
        at += length
    found: dict[str, Any] = {"schemaVersion": 1, "traceEvents": events}
    if rank is not None:
        found["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
    return found


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content, indent=1))
    return path


STEADY = [4.0, 4.2, 3.9, 4.1] * 25
SLOWER = [9.0, 9.2, 8.9, 9.1] * 25


def compare(*words: object) -> dict[str, Any]:
    """The JSON of a comparison that ends with 0, its sums checked."""
    target = Path(str(words[0])).parent / "diff.out"
    assert main(["diff", *map(str, words), "-q", "--json", str(target)]) == 0
    found: dict[str, Any] = json.loads(target.read_text())
    assert found["schema"] == "hotloop.diff/1"
    for terms in (found["step"], found["device"]):
        if isinstance(terms, dict) and "terms" in terms:
            assert sum(t["delta_ns"] for t in terms["terms"]) == terms["whole"]["delta_ns"]
            assert sum(t["before_ns"] for t in terms["terms"]) == terms["before_ns"]
            assert sum(t["after_ns"] for t in terms["terms"]) == terms["after_ns"]
    return found


def term(terms: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (t for t in terms["terms"] if t["name"] == name)
    return found


def test_two_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = write(tmp_path / "a.json", trace()), write(tmp_path / "b.json", trace(wait_us=100))
    found = compare(before, after, *KEPT)
    assert term(found["step"], "input_wait")["delta_ns"] == -300_000
    assert term(found["device"], "idle")["delta_ns"] == -300_000
    assert capsys.readouterr().out == ""
    assert main(["diff", str(before), str(after), *KEPT]) == 0
    assert "step 1.00 -> 0.70 ms, -0.30 ms (-30%) [95% -0.30 to -0.30]" in capsys.readouterr().out
    assert main(["diff", str(before), str(after), *KEPT, "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("## step 1.00 -&gt; 0.70 ms")


def test_a_side_without_a_device_is_said_before_any_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = write(tmp_path / "a.json", trace(device=False)), write(tmp_path / "b.json", trace())
    found = compare(first, second, *KEPT)
    assert found["device"] is None
    assert main(["diff", str(first), str(second), *KEPT]) == 0
    text = capsys.readouterr().out
    assert text.index("! before contains no device work: only the host can be compared") < text.index("\nstep ")


@pytest.mark.parametrize("content", [None, b"", b"\x80\x04cos\nsystem\n", b'{"traceEvents": 3}', b"\x1f\x8b\x08\x00"])
@pytest.mark.parametrize("is_first", [True, False])
def test_bad_input_is_one_clear_line(
    content: bytes | None, is_first: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = tmp_path / "bad.json", write(tmp_path / "good.json", trace())
    if content is not None:
        bad.write_bytes(content)
    sides = [str(bad), str(good)] if is_first else [str(good), str(bad)]
    assert main(["diff", *sides, *KEPT]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("hotloop: ")
    assert captured.err.count("\n") == 1
    assert "bad.json" in captured.err


# ---- several ranks


def allreduce(start: float, length: float, number: int) -> list[dict[str, Any]]:
    about = {"Collective name": "allreduce", "In msg nelems": 64, "Out msg nelems": 64, "dtype": "Float",
             "Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}  # fmt: skip
    placed = {"device": 0, "stream": 9, "correlation": number}
    return [
        event("cuda_runtime", "cudaLaunchKernel", start - 8, 5.0, correlation=number),
        event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", start, length, 9, **placed, **about),
    ]


# ---- runs


def test_two_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    first = record(tmp_path / ".hotloop" / "first", STEADY)
    record(tmp_path / ".hotloop" / "second", SLOWER)
    monkeypatch.chdir(tmp_path)
    found = compare(first, "second")
    assert [found["before"]["kind"], found["after"]["name"]] == ["run", "second"]
    # The mean of 3.9, 4.0, 4.1 and 4.2 over any whole number of their rounds, as the report says it.
    assert term(found["step"], "forward")["delta_ns"] == pytest.approx(5 * MS, abs=0.02 * MS)
    assert term(found["step"], "backward") == {
        "name": "backward", "before_ns": 6 * MS, "after_ns": 6 * MS, "delta_ns": 0, "half_width_ns": 0,
    }  # fmt: skip
    assert main(["diff", "first", "second"]) == 0
    text = capsys.readouterr().out
    assert "\nstep 11.0" in text
    assert "each side is a single launch" in " ".join(text.split())


def test_ranks_of_a_run_are_averaged_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = record(tmp_path / "a", STEADY)
    second = record(tmp_path / "b", STEADY, ranks=2, slower_by_rank_ms=2.0)
    found = compare(first, second)
    assert (found["before"]["ranks_count"], found["after"]["ranks_count"]) == (1, 2)
    assert term(found["step"], "forward")["delta_ns"] == pytest.approx(MS, abs=0.02 * MS)
    assert main(["diff", str(first), str(second)]) == 0
    text = capsys.readouterr().out
    assert text.index("! ranks: 1 before and 2 after") < text.index("\nstep ")
    assert "does not separate waiting for other ranks from transferring" in " ".join(text.split())


def test_other_batches_are_said_first_and_counted_per_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps of 11.05 ms with 8 samples against 16.05 ms with 16: slower steps, faster samples."""
    first, second = record(tmp_path / "a", STEADY, samples=8), record(tmp_path / "b", SLOWER, samples=16)
    change = compare(first, second)["per_unit"]
    assert (change["unit"], change["before_count"], change["after_count"]) == ("sample", 8, 16)
    assert change["delta_ns"] == pytest.approx((16.05 / 16 - 11.05 / 8) * MS, rel=0.01)
    assert 0 < change["half_width_ns"] < -change["delta_ns"]


# ---- real traces


@needs_traces
def test_workers_win_less_than_the_wait(tmp_path: Path) -> None:
    target = tmp_path / "d.json"
    sides = [str(TRACES / name) for name in ("resnet50_workers_0", "resnet50_workers_4")]
    assert main(["diff", *sides, *KEPT, "-q", "--json", str(target)]) == 0
    found = json.loads(target.read_text())
    assert found["step"]["whole"]["delta_ns"] == pytest.approx(-35.1 * MS, abs=0.1 * MS)
    assert term(found["step"], "input_wait")["delta_ns"] == pytest.approx(-67.9 * MS, abs=0.1 * MS)
    assert abs(term(found["device"], "compute")["delta_ns"]) < term(found["device"], "compute")["half_width_ns"]
