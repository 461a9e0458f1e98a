"""Recordings of several nodes through a store: every row arrives or is counted, whatever fails in between."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hotloop.pipeline.recordings import count_rows, upload_run
from hotloop.pipeline.runs import read_report
from hotloop.remote.fetch import describe_fetch, fetch_run
from hotloop.remote.follow import FAILURE_FILE, REFUSED, UploadProcess, process_words
from hotloop.remote.store import StoreError
from hotloop.remote.uploader import (
    PrefixTaken,
    count_uploaded,
    describe_upload,
    hold_folder,
)
from tests.remote.endpoint import FlakyEndpoint
from tests.remote.nodes import Node, count_ranks, upload


def lines_of(folder: Path) -> list[str]:
    return [one.message for one in describe_fetch(folder)]


def test_every_row_of_two_nodes_arrives_although_a_third_of_the_requests_fail(
    flaky: FlakyEndpoint, tmp_path: Path, cache: Path
) -> None:
    nodes = [Node(tmp_path / f"node{rank}", rank) for rank in range(2)]  # of the same host name and pid
    uploaders = [node.uploader("s3://runs/first") for node in nodes]
    for part in range(3):
        for node, uploader in zip(nodes, uploaders, strict=True):
            node.train(1500)
            if part == 2:
                node.end()
            uploader.upload(ended=part == 2)
    assert sum(flaky.application.failed.values()) > 0.2 * flaky.application.requests_count
    assert len(flaky.application.failed) == 5
    folder = fetch_run("s3://runs/first", cache)
    assert count_ranks(folder) == {0: 4500, 1: 4500}
    assert lines_of(folder) == []
    for node in nodes:
        (path,) = (node.folder / "processes").glob("*.hlr")
        assert path.read_bytes() in [other.read_bytes() for other in (folder / "processes").glob("*.hlr")]


def test_a_node_that_dies_leaves_what_it_had_uploaded(prompt: None, tmp_path: Path, cache: Path) -> None:
    url = f"file://{tmp_path}/store"
    alive, dead = Node(tmp_path / "a", 0), Node(tmp_path / "b", 1, host="other")
    alive.train(400)
    dead.train(300)
    upload(dead, url, ended=False)
    dead.train(100)  # recorded, and never uploaded
    alive.end()
    upload(alive, url)
    folder = fetch_run(url, cache)
    assert count_ranks(folder) == {0: 400, 1: 300}
    (line,) = lines_of(folder)
    assert "has not finished its upload" in line
    assert "(300 rows)" in line
    report = read_report(folder)
    assert [rank.rank for rank in report.ranks] == [0, 1]
    assert [one.message for one in report.health if one.message == line] == [line]
    upload(dead, url)  # its disk was still there: the rest
    assert count_ranks(fetch_run(url, cache)) == {0: 400, 1: 400}
    assert lines_of(folder) == []


def test_nodes_whose_files_have_the_same_names_are_kept_apart(prompt: None, tmp_path: Path, cache: Path) -> None:
    url, began_wall_s = str(tmp_path / "store"), time.time()
    for name, steps in (("a", 30), ("b", 40)):
        node = Node(tmp_path / name, 0, began_wall_s=began_wall_s)  # containers number their processes alike
        node.train(steps)
        node.end()
        upload(node, url)
    folder = fetch_run(url, cache)
    assert count_ranks(folder) == {0: 70}
    assert sorted(count_rows(path, 0) for path in (folder / "processes").iterdir()) == [30, 40]
    (other,) = (folder / "nodes").iterdir()
    assert {path.name for path in other.iterdir()} == {"run.json", "outcome.json"}


def test_a_file_that_is_too_large_is_left_out_and_counted(prompt: None, tmp_path: Path, cache: Path) -> None:
    node, url = Node(tmp_path / "a", 0), str(tmp_path / "store")
    node.train(10)
    node.end()
    (node.folder / "traces").mkdir()
    with (node.folder / "traces" / "rank0.json").open("wb") as file:
        file.truncate((2 << 30) + 1)
    uploader = upload(node, url)
    uploaded = count_uploaded(node.folder, url, uploader.manifest, count_rows, None)
    reason = "the missing part could not be read, or is larger than 2 GiB"
    assert uploaded.describe() == f"0 of 10 rows, in 1 files, did not arrive at {url} ({reason})"


def test_an_upload_goes_on_where_a_killed_one_ended(
    prompt: None, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, node = f"file://{tmp_path}/store", Node(tmp_path / "a", 0)
    node.train(3000)
    first = upload(node, url, ended=False)
    node.train(3000)
    sent: list[str] = []
    put = first._store.put

    class Killed(BaseException):
        pass

    def kill_at_third(name: str, content: bytes) -> None:
        sent.append(name)
        if len(sent) == 3:
            raise Killed
        put(name, content)

    monkeypatch.setattr(first._store, "put", kill_at_third)
    with pytest.raises(Killed):
        first.upload(ended=False)
    monkeypatch.undo()
    assert count_ranks(fetch_run(url, cache)) == {0: 3000}
    node.end()
    second = node.uploader(url)
    assert second.manifest == first.manifest  # the same node, and what is known to have arrived
    names: list[str] = []
    put_again = second._store.put
    monkeypatch.setattr(second._store, "put", lambda name, content: (names.append(name), put_again(name, content)))
    second.upload(ended=True)
    assert not {name.rpartition("/")[2] for name in names} & first.manifest.checksums
    assert count_ranks(fetch_run(url, cache)) == {0: 6000}
    assert len(list((tmp_path / "store" / "nodes").iterdir())) == 1


def test_a_store_that_forgets_what_it_took_is_found_out(
    prompt: None, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, url = Node(tmp_path / "a", 0), f"file://{tmp_path}/store"
    node.train(1000)
    node.end()
    uploader = node.uploader(url)
    put, forgotten = uploader._store.put, []

    def forget_one(name: str, content: bytes) -> None:
        if "/blocks/" in name and not forgotten:
            forgotten.append(name)
        else:
            put(name, content)

    monkeypatch.setattr(uploader._store, "put", forget_one)
    with pytest.raises(StoreError, match="lacks 1 blocks that it accepted"):
        uploader.upload(ended=True)
    assert "lacks 1 of" in lines_of(fetch_run(url, cache))[0]
    uploader.upload(ended=True)
    assert lines_of(fetch_run(url, cache)) == []


class TestTwoRunsAreNeverMixed:
    @pytest.fixture
    def url(self, tmp_path: Path, prompt: None) -> str:
        return f"file://{tmp_path}/store"

    def test_a_later_run_is_refused(self, tmp_path: Path, url: str, cache: Path) -> None:
        now = time.time()
        first = Node(tmp_path / "a", 0, began_wall_s=now - 100)
        first.train(10)
        first.end()
        upload(first, url)
        again = Node(tmp_path / "b", 0, began_wall_s=now + 1)
        with pytest.raises(PrefixTaken, match="not recording at the same time"):
            upload(again, url, ended=False)
        assert count_ranks(fetch_run(url, cache)) == {0: 10}

    def test_a_run_that_was_killed_here_does_not_take_in_the_next_one(self, tmp_path: Path, url: str) -> None:
        killed = Node(tmp_path / "a", 0, began_wall_s=time.time() - 5)
        text = (killed.folder / "run.json").read_text()
        (killed.folder / "run.json").write_text(text.replace('"pid": 1', f'"pid": {1 << 22}'))
        upload(killed, url, ended=False)
        with pytest.raises(PrefixTaken, match="not recording at the same time"):
            upload(Node(tmp_path / "b", 0), url, ended=False)

    def test_ids_decide_where_they_are_given(self, tmp_path: Path, url: str, cache: Path) -> None:
        now = time.time()
        upload(Node(tmp_path / "a", 0, began_wall_s=now - 9000), url, run_id="job-1")
        upload(Node(tmp_path / "b", 1, began_wall_s=now + 9000), url, run_id="job-1")
        for name, run_id in (("c", "job-2"), ("d", None)):
            with pytest.raises(PrefixTaken, match="holds the run job-1"):
                upload(Node(tmp_path / name, 0), url, run_id=run_id)
        assert set(count_ranks(fetch_run(url, cache))) == {0, 1}

    def test_a_driver_that_cannot_refuse_to_replace_claims_it_as_well(
        self, tmp_path: Path, url: str, cache: Path
    ) -> None:
        node = Node(tmp_path / "a", 0)
        node.train(10)
        uploader = node.uploader(url)
        system = uploader._store._system

        class Plain:
            def __getattr__(self, name: str) -> Any:
                return getattr(system, name)

            def pipe_file(self, path: str, value: bytes) -> None:
                system.pipe_file(path, value)

        uploader._store._system = Plain()
        uploader.join()
        uploader.upload(ended=False)
        assert count_ranks(fetch_run(url, cache)) == {0: 10}

    def test_of_two_that_come_at_once_one_claims_the_url(self, flaky: FlakyEndpoint, tmp_path: Path) -> None:
        uploaders = [Node(tmp_path / str(rank), rank).uploader("s3://runs/race") for rank in range(2)]
        read = uploaders[1]._read_marker
        answers = [lambda: None, read, read]  # the second one looks before the first one has written
        uploaders[0].join()
        uploaders[1]._read_marker = lambda: answers.pop(0)()  # type: ignore[method-assign]
        uploaders[1].join()
        assert uploaders[0].manifest.run_id == uploaders[1].manifest.run_id


class TestWhatIsLostIsCounted:
    def test_a_dead_endpoint(self, prompt: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        node = Node(tmp_path / ".hotloop" / "one", 0)
        node.train(250)
        node.end()
        (tmp_path / "blocked").write_text("no folder")
        folder, uploaded = upload_run("one", f"{tmp_path}/blocked/run", run_id=None, within_s=0.0)
        assert (uploaded.rows_count, uploaded.lost_rows_count, uploaded.late_files_count) == (250, 250, 3)
        (line,) = describe_upload(folder)
        assert "250 of 250 rows, in 3 files, did not arrive" in line.message
        assert "hotloop upload one URL" in line.message
        folder, uploaded = upload_run("one", f"{tmp_path}/store", run_id=None, within_s=0.0)
        assert (uploaded.lost_rows_count, uploaded.reason) == (0, None)
        assert describe_upload(folder) == ()

    def test_one_upload_of_a_folder_at_a_time(self, tmp_path: Path) -> None:
        from hotloop.core.errors import UsageError

        with hold_folder(tmp_path), pytest.raises(UsageError, match="is already being uploaded"), hold_folder(tmp_path):
            pass


class TestUploadProcess:
    """The owner, with a process that does as a test wants."""

    @staticmethod
    def own(folder: Path, script: str, said: list[str] | None = None) -> UploadProcess:
        return UploadProcess([sys.executable, "-S", "-c", script], folder, ([] if said is None else said).append)

    def test_one_that_hangs_is_given_up_in_time(self, tmp_path: Path) -> None:
        process = self.own(tmp_path, "import time; time.sleep(600)")
        process.tick()
        began_s = time.monotonic()
        process.stop(0.3)
        assert time.monotonic() - began_s < 2.0
        assert process.pid is None

    def test_one_that_dies_is_started_again_and_told_again(self, tmp_path: Path) -> None:
        place = tmp_path / "began"
        process = self.own(
            tmp_path,
            f"import os, sys; f = open({str(place)!r}, 'a'); f.write('x'); f.close()\n"
            f"if os.path.getsize({str(place)!r}) < 2: os.kill(os.getpid(), 9)\n"
            "sys.stdin.read()",
        )
        process.tick()
        process.stop(20.0)
        assert place.read_text() == "xx"
        assert process.is_done

    def test_a_refusal_is_said_once_and_ends_it(self, tmp_path: Path) -> None:
        said: list[str] = []
        (tmp_path / FAILURE_FILE).write_text("another run")
        process = self.own(tmp_path, f"raise SystemExit({REFUSED})", said)
        process.tick()
        process.stop(20.0)
        process.tick()
        assert said == ["not uploaded: another run"]
        assert process.pid is None

    def test_the_real_one_sends_until_its_input_ends(self, tmp_path: Path, cache: Path) -> None:
        node, url = Node(tmp_path / "a", 0), str(tmp_path / "store")
        node.train(20)
        process = UploadProcess(process_words(node.folder, url, "job-1"), node.folder, print)
        process.tick()
        node.train(20)
        node.end()
        process.stop(60.0)
        assert (process.is_done, process.is_refused, process.reason) == (True, False, None)
        assert count_ranks(fetch_run(url, cache)) == {0: 40}
