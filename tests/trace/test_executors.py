"""Files read by the workers of a Dask cluster: the same result as here, also when one of them dies."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from build import write_trace

from hotloop.cli import main
from hotloop.core.errors import UsageError
from hotloop.trace import inputs
from hotloop.trace.inputs import map_traces, open_reader

FILES = 12


def start(folder: Path, name: str, *words: str) -> "subprocess.Popen[bytes]":
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "dask", *words], stdout=log, stderr=log, cwd=folder
        )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[int]]]:
    """The address of a scheduler with two workers, and their process ids."""
    folder = tmp_path_factory.mktemp("cluster")
    known = folder / "scheduler.json"
    quiet = ("--scheduler-file", str(known), "--no-dashboard")
    started = [start(folder, "scheduler", "scheduler", "--host", "127.0.0.1", "--port", "0", *quiet)]
    try:
        for at in range(2):
            started.append(start(folder, f"worker{at}", "worker", "--nthreads", "1", "--no-nanny", *quiet))
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not (known.exists() and known.stat().st_size):
            time.sleep(0.1)
        address = json.loads(known.read_text())["address"]
        _wait_for_workers(address, 2, deadline)
        yield address, [worker.pid for worker in started[1:]]
    finally:
        for one in started:
            one.kill()
            one.wait()


def _wait_for_workers(address: str, count: int, deadline: float) -> None:
    from distributed import Client

    with Client(address, timeout=60, set_as_default=False) as client:
        client.wait_for_workers(count, timeout=max(1, deadline - time.monotonic()))


def write_traces(folder: Path) -> Path:
    for rank in range(FILES):
        write_trace(folder / f"rank{rank}.json", rank=rank, world_size=FILES, count=10 + rank)
    return folder


@pytest.mark.filterwarnings("ignore")
def test_a_killed_worker_loses_nothing_and_the_result_is_that_of_processes(
    cluster: tuple[str, list[int]], tmp_path: Path
) -> None:
    address, workers = cluster
    folder = write_traces(tmp_path / "traces")
    here = map_traces([folder], len, workers=2)

    def kill_one(done_bytes: int, total_bytes: int) -> None:
        if len(workers) == 2 and done_bytes > total_bytes / 3:
            os.kill(workers.pop(), signal.SIGKILL)

    there = map_traces([folder], len, scheduler=address, progress=kill_one)
    assert len(workers) == 1  # the other was killed on the way
    assert [trace.result for trace in there.traces] == [trace.result for trace in here.traces]
    assert [trace.result for trace in there.traces] == [10 + rank for rank in range(FILES)]
    assert there.notes == here.notes


@pytest.mark.filterwarnings("ignore")
def test_nobody_there_is_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "CONNECT_S", 1)
    with pytest.raises(UsageError, match="no scheduler answers"), open_reader(1, "tcp://127.0.0.1:9"):
        pass
    assert main(["trace", str(write_traces(tmp_path / "t")), "--on", "tcp://127.0.0.1:9"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert main(["trace", str(tmp_path), "--on", "tcp://127.0.0.1:9", "--workers", "2"]) == 2
    assert "remove --workers" in capsys.readouterr().err
