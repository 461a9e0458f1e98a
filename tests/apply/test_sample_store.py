"""Stores of samples: bounded, shared between forked processes, and whole after a kill."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from hotloop.apply.sample_format import encode
from hotloop.apply.sample_store import MISSING, FolderStore, MemoryStore, Pieces

SIZE = 1000


def record(key: int) -> bytearray:
    return encode(torch.full((SIZE,), float(key)), key)


def in_children(count: int, work: Any) -> None:
    """``work(number)`` in so many forked processes at once."""
    pids = []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                work(number)
            finally:
                os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)


def held(store: Any, count: int) -> list[int]:
    found = []
    for key in range(count):
        sample = store.get(key)
        if sample is not MISSING:
            assert sample.tolist() == [float(key)] * SIZE
            found.append(key)
    return found


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_processes_fill_one_store_and_keep_to_its_bound(kind: str, tmp_path: Path) -> None:
    bound = 1 << 20
    store: Any = MemoryStore(600, bound, 4 * SIZE) if kind == "memory" else FolderStore(str(tmp_path), bound, 4 * SIZE)
    in_children(3, lambda number: [store.put(key, record(key)) for key in range(number, 600, 3)])
    keys = held(store, 600)
    assert store.count() == len(keys)
    assert 0.7 * bound < sum(len(record(key)) for key in keys) <= bound
    if kind == "folder":
        sizes = sum(path.stat().st_size for path in tmp_path.rglob("*.sample"))
        assert sizes <= bound
        later = FolderStore(str(tmp_path), sizes + len(record(0)) + 100, 4 * SIZE)  # room for one more
        missing = [key for key in range(600) if key not in keys]
        assert [later.put(key, record(key)) for key in missing[:3]] == [True, False, False]
        assert later.is_full


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_killed_writer_leaves_whole_records_or_none(tmp_path: Path) -> None:
    for _ in range(5):
        store = FolderStore(str(tmp_path), 1 << 30)
        pid = os.fork()
        if pid == 0:
            for key in range(100_000):
                store.put(key, record(key))
            os._exit(0)
        until = time.monotonic() + 20
        while store.get(3) is MISSING and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert held(store, 4) == [0, 1, 2, 3]
    for path in tmp_path.rglob("*.sample"):
        assert path.stat().st_size == len(record(0))


def test_files_that_are_no_records_are_missing_and_written_anew(tmp_path: Path) -> None:
    store = FolderStore(str(tmp_path), 1 << 20)
    assert store.put(5, record(5))
    (path,) = tmp_path.rglob("*.sample")
    for content in (b"", b"no record", bytes(record(6)), bytes(record(5))[:-70]):
        path.write_bytes(content)
        assert store.get(5) is MISSING
    assert store.put(5, record(5))
    assert held(store, 6) == [5]


def test_drafts_of_dead_writers_are_removed(tmp_path: Path) -> None:
    FolderStore(str(tmp_path), 1 << 20).put(5, record(5))
    (path,) = tmp_path.rglob("*.sample")
    old, new = path.with_name("a.draft"), path.with_name("b.draft")
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    os.utime(old, (0, 0))
    FolderStore(str(tmp_path), 1 << 20)
    assert not old.exists()
    assert new.exists()


def test_a_folder_that_disappears_only_ends_the_writing(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    store = FolderStore(str(folder), 1 << 20)
    folder.rmdir()
    folder.write_text("a file is in its place")
    assert not store.put(1, record(1))
    assert store.get(1) is MISSING
    assert store.is_full


def test_every_piece_is_taken_once() -> None:
    pieces = Pieces(5)
    assert [pieces.take() for _ in range(7)] == [0, 1, 2, 3, 4, None, None]


def test_a_record_larger_than_a_piece_is_not_kept() -> None:
    store = MemoryStore(4, 1 << 22, 100)
    assert not store.put(0, encode(torch.zeros(1 << 16), 0))
    assert store.get(0) is MISSING
    assert store.put(1, record(1))
