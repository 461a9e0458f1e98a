"""Dumps of torch's flight recorder -> the collective that differs between ranks."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from hotloop.core.errors import RecordingError
from hotloop.evidence.snapshot import judge
from hotloop.evidence.snapshot.flight import find_difference, read_dump
from hotloop.pipeline.attach import attach

from .test_attach import TWO_RANKS, running

HANG = """
import pickle
from torch._C._distributed_c10d import _dump_fr_trace
dist.all_reduce(torch.ones(3))
def dump():
    content = b""
    while len(pickle.loads(content)["entries"] if content else ()) < 2 - rank:
        time.sleep(0.1)
        content = _dump_fr_trace(True, False, False)
    with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + str(rank), "wb") as file:
        file.write(content)
    if rank == 0:
        ready()
threading.Thread(target=dump, daemon=True).start()
if rank == 1:
    threading.Event().wait()
dist.all_reduce(torch.ones(8))
"""


def entry(number: int, name: str, size: int, *, is_over: bool = True, group: str = "default_pg") -> dict[str, Any]:
    return {
        "process_group": ("0", group), "collective_seq_id": number, "p2p_seq_id": 0, "profiling_name": f"nccl:{name}",
        "input_sizes": [[size]], "state": "completed" if is_over else "started", "is_p2p": False,
    }  # fmt: skip


def write(folder: Path, rank: int, *entries: dict[str, Any]) -> Path:
    path = folder / f"dump_{rank}"
    path.write_bytes(pickle.dumps({"version": "2.10", "entries": list(entries)}))
    return path


first = entry(1, "all_reduce", 10)
CASES: dict[str, tuple[list[list[dict[str, Any]]], str, tuple[int, ...]]] = {
    "same": ([[first], [first]], "", ()),
    "sizes": ([[first], [first], [entry(1, "all_reduce", 11)]], "collective 1 of group default_pg", (2,)),
    "names": (
        [[first, entry(2, "barrier", 1)], [first, entry(2, "broadcast", 1)]],
        "rank 1 runs broadcast of [1]",
        (0, 1),
    ),
    "late": ([[first, entry(2, "barrier", 1, is_over=False)], [first]], "collective 2 of group default_pg", (1,)),
    "ahead": ([[first, entry(2, "barrier", 1)], [first]], "", ()),
    "sizes-may-differ": ([[entry(1, "all_to_all", 3)], [entry(1, "all_to_all", 4)]], "", ()),
    "other-group": ([[first, entry(1, "barrier", 1, group="tp")], [first]], "", ()),
}


@pytest.mark.parametrize("case", CASES)
def test_the_ranks_that_differ_are_named(tmp_path: Path, case: str) -> None:
    ranks, wanted, differing = CASES[case]
    dumps = {rank: read_dump(write(tmp_path, rank, *its)) for rank, its in enumerate(ranks)}
    text, found = find_difference(dumps) or ("", ())
    assert wanted in text
    assert found == differing


@pytest.mark.parametrize(
    "content",
    [b"cos\nsystem\n(S'true'\ntR.", b"", *(pickle.dumps(it) for it in ([1], {"entries": 3}, {"entries": [{}]}))],
)
def test_a_file_that_is_no_dump_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "dump").write_bytes(content)
    with pytest.raises(RecordingError):
        read_dump(tmp_path / "dump")


def test_dumps_of_a_hung_training_name_its_collective(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "STUCK_S", 1.5)
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(tmp_path / "dump_"))
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "100")
    with running(tmp_path, TWO_RANKS + HANG, ranks=2) as process:
        (report,) = attach(str(process.pid))
    assert report.verdict == "hung"
    assert report.collective == "collective 2 of group default_pg, all_reduce of [8], has not been reached by rank 1"
    assert [culprit.rank for culprit in report.culprits] == [1]
