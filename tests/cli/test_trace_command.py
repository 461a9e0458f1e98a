"""hotloop trace, from files to text, JSON and page."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from hotloop.cli import main
from tests.recordings import event


def two_steps(rank: int | None = None, wait_us: float = 400.0, kernel: str = "gemm") -> dict[str, Any]:
    """Two steps of 1 ms: a wait for data, then one kernel that fills the rest."""
    events = []
    for step in range(2):
        at = 1000.0 * step
        events += [
            event("user_annotation", f"ProfilerStep#{step}", at, 1000.0),
            event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, wait_us),
            event("cuda_runtime", "cudaLaunchKernel", at + wait_us, 5.0, correlation=step + 1),
            event("kernel", kernel, at + wait_us + 10, 980.0 - wait_us, 7, device=0, stream=7, correlation=step + 1),
        ]
    trace: dict[str, Any] = {"schemaVersion": 1, "traceEvents": events}
    if rank is not None:
        trace["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
    return trace


def write(path: Path, trace: Any) -> Path:
    path.write_text(json.dumps(trace, indent=1))
    return path


def test_a_wait_for_data_is_named_and_the_exit_code_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.json", two_steps())
    assert main(["trace", str(path), "--json", str(tmp_path / "r.json")]) == 1
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["outcome"] is None
    first = report["findings"][0]
    assert first["rule"] == "input-bound"
    assert first["cost_ratio"] == pytest.approx(0.4)
    assert report["device"]["compute"]["share_ratio"] + report["device"]["idle"]["share_ratio"] == pytest.approx(1.0)
    assert report["trace"]["ranks"][0]["timeline"]["steps"][0]["partition"]["compute_ns"] == 580_000
    text = capsys.readouterr().out
    assert text.index("input-bound: every step waits 400 µs (40%)") < text.index("HEALTH") < text.index("FINDINGS")
    assert text.rstrip().endswith("hotloop rule input-bound")
    assert main(["trace", str(path), "-q", "--exit-zero"]) == 0


def test_a_folder_of_ranks_is_one_report(tmp_path: Path) -> None:
    for rank in (1, 0):
        with gzip.open(tmp_path / f"worker{rank}.pt.trace.json.gz", "wt") as file:
            json.dump(two_steps(rank), file)
    assert main(["trace", str(tmp_path), "-q", "--json", str(tmp_path / "r.out")]) == 1
    report = json.loads((tmp_path / "r.out").read_text())
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    assert report["trace"]["ranks"][0]["facts"]["rank_source"] == "distributedInfo"


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "does not exist"), (b"", "empty"), (b"\x80\x04cos\nsystem\n", ""), (b'{"traceEvents": 3}', "")],
)
def test_bad_input_is_one_clear_line(
    content: bytes | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    assert main(["trace", str(path)]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("hotloop: ")
    assert words in lines[0]


def test_what_if_tells_the_step_its_range_and_its_basis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of steps of 1 ms 400 us are waits for data; together with a free launch both are gone."""
    path = write(tmp_path / "a.json", two_steps())
    asked = ("--what-if", "no-input-wait", "--what-if", "free-launches")
    main(["trace", str(path), "--exit-zero", *asked, "--json", str(tmp_path / "r.json")])
    told = json.loads((tmp_path / "r.json").read_text())["trace"]["what_if"]
    assert [one["changes"] for one in told] == [
        ["no-input-wait"], ["free-launches"], ["no-input-wait", "free-launches"],
    ]  # fmt: skip
    for one in told:
        assert one["measured_step_ns"] == one["replayed_step_ns"] == 1_000_000
        assert one["low_step_ns"] <= one["step_ns"] <= one["high_step_ns"]
        assert one["basis"] == "simulated"
        assert 0 <= one["inferred_edges"] <= one["edges_count"]
    assert told[0]["step_ns"] == 600_000
    assert told[0]["saving_mid_ratio"] == pytest.approx(0.4)
    text = capsys.readouterr().out
    assert "WHAT IF, AS REQUESTED" in text
    assert "no-input-wait + free-launches" in text


@pytest.mark.parametrize(
    "change",
    ["magic", "faster=2", "faster=2:(", "faster-matmuls=0", "no-host-time=3"],
)
def test_a_bad_what_if_is_refused_before_anything_is_read(change: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "no/such/file.json", "--what-if", change]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert change in line
    if change == "magic":
        assert "no-input-wait" in line
        assert "faster-matmuls[=FACTOR]" in line


def test_a_snapshot_is_told_with_the_user_s_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.pickle"
    frames = [{"filename": "/home/me/model.py", "line": 12, "name": "forward"}]
    blocks = [
        {"address": 0, "size": 3 << 20, "requested_size": 3 << 20, "state": "active_allocated", "frames": frames},
        {"address": 3 << 20, "size": 1 << 20, "requested_size": 0, "state": "inactive", "frames": []},
    ]
    segment = {"device": 0, "address": 0, "total_size": 4 << 20, "allocated_size": 3 << 20, "active_size": 3 << 20,
               "stream": 0, "segment_type": "large", "blocks": blocks}  # fmt: skip
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": []}))
    assert main(["trace", str(path), "--json", str(tmp_path / "r.json")]) == 0
    (told,) = json.loads((tmp_path / "r.json").read_text())["memory_files"]
    assert told["devices"][0]["reserved_bytes"] == 4 << 20
    assert told["largest_blocks"][0]["where"]["line"] == 12
    text = capsys.readouterr().out
    assert text.startswith("device 0 has 3.0 MiB in use of 4.0 MiB reserved")
    assert "MEMORY IN USE BY LINE" in text
    assert "model.py:12" in text


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        (pickle.dumps(Path("x")), (), "run code"),
        (b"", (), "is empty"),
        (pickle.dumps({}), ("--what-if", "no-input-wait"), "no steps"),
        (pickle.dumps({}), ("a.json",), "use a separate command"),
    ],
)
def test_a_memory_file_that_cannot_be_told_is_one_line(
    content: bytes, arguments: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.pickle").write_bytes(content)
    assert main(["trace", str(tmp_path / "s.pickle"), *arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line
