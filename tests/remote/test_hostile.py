"""What anybody may have put into a bucket: refused with one line, and nothing is written outside the cache."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotloop.core.errors import RecordingError
from hotloop.remote.fetch import describe_fetch, fetch_run
from hotloop.remote.manifest import BLOCK_BYTES, SCHEMA, is_recorded_name
from tests.remote.nodes import Node, count_ranks, upload

pytestmark = pytest.mark.usefixtures("prompt")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    node = Node(tmp_path / "a", 0)
    node.train(500)
    node.end()
    upload(node, f"file://{tmp_path}/store")
    return tmp_path / "store"


def fetch(store: Path, **limits: int) -> Path:
    return fetch_run(str(store), store.parent / "cache", attempts=1, **limits)


def forge(store: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the node's manifests, with checksums that fit."""
    for path in store.glob("nodes/*/manifest-*.json"):
        node = json.loads(path.read_text())["node"]
        change(node)
        text = json.dumps(node, separators=(",", ":"), sort_keys=True)
        checksum = hashlib.sha256(text.encode()).hexdigest()
        path.write_text(f'{{"schema":"{SCHEMA}","sha256":"{checksum}","node":{text}}}')


def rename(old: str, new: str) -> Callable[[dict[str, Any]], None]:
    def change(node: dict[str, Any]) -> None:
        node["files"][new] = node["files"].pop(old)

    return change


def set_file(**values: Any) -> Callable[[dict[str, Any]], None]:
    def change(node: dict[str, Any]) -> None:
        next(state for name, state in node["files"].items() if name.endswith(".hlr")).update(values)

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (rename("run.json", "../../run.json"), "is refused: Expected `str` matching"),
        (rename("run.json", "/etc/run.json"), "is refused: Expected `str` matching"),
        (rename("run.json", "processes/../../x.hlr"), "is refused: Expected `str` matching"),
        (rename("run.json", "processes/a.pkl"), "is refused: Expected `str` matching"),
        (rename("run.json", "processes/a.hlr.where"), "is refused: Expected `str` matching"),
        (rename("run.json", "processes/a.access"), "is refused: Expected `str` matching"),
        (set_file(size_bytes=1 << 50), "Expected `int` <= 2147483648"),
        (set_file(size_bytes=-1), "Expected `int` >= 0"),
        (set_file(size_bytes=1 << 30), "has not"),
        (set_file(blocks="x" * 17), "Expected `array`"),
        (set_file(blocks=["../../../recording.json"]), "is refused: Expected `str` matching"),
        (set_file(rows_count=True), "got `bool`"),
        (lambda node: node.update(began_wall_s=float("nan")), "Expected `float` >= 0"),
        (lambda node: node.update(run_id="../x"), "is refused: Expected `str` matching"),
        (lambda node: node.update(files=[]), "got `array`"),
        (lambda node: node.pop("pid"), "missing required field `pid`"),
    ],
)
def test_a_forged_manifest_is_refused(store: Path, change: Callable[[dict[str, Any]], None], words: str) -> None:
    forge(store, change)
    with pytest.raises(RecordingError, match=words) as refused:
        fetch(store)
    assert "\n" not in str(refused.value)
    cache = store.parent / "cache"
    assert not cache.exists() or list(cache.iterdir()) == []


def test_damage_in_one_manifest_leaves_the_other(store: Path) -> None:
    (slot,) = store.glob("nodes/*/manifest-1.json")
    good = slot.read_bytes()
    for damaged in (good[:-40], b"\x80\x04pickle", good.replace(b'"ended":true', b'"ended":null'), b"[" * 100_000):
        slot.write_bytes(damaged)
        with pytest.raises(RecordingError, match=r"is damaged: (its checksum is wrong|it contains no JSON object)"):
            fetch(store)
    slot.with_name("manifest-0.json").write_bytes(good)
    assert count_ranks(fetch(store)) == {0: 500}


def test_a_wrong_block_is_zeros_and_its_rows_are_lost(store: Path) -> None:
    blocks = sorted(store.glob("nodes/*/blocks/*"), key=lambda path: path.stat().st_size)
    whole = fetch(store)
    assert count_ranks(whole) == {0: 500}
    rows = next(path for path in blocks if zlib.decompress(path.read_bytes()).count(b"HLF") > 50)
    rows.write_bytes(zlib.compress(b"x" * BLOCK_BYTES))
    folder = fetch_run(str(store), store.parent / "second", attempts=1)
    (line,) = (one.message for one in describe_fetch(folder))
    assert "lacks 1 of" in line
    assert "is damaged: its checksum is wrong" in line
    from hotloop.evidence.trace.recording import read_run

    (process,) = read_run(folder).processes
    assert process.lost_rows > 0
    assert process.lost_rows + count_ranks(folder)[0] == 500


def test_a_run_larger_than_the_cache_is_refused(store: Path) -> None:
    with pytest.raises(RecordingError, match=r"more than the cache's 0\.0 GiB"):
        fetch(store, most_bytes=1000)


def test_the_cache_drops_the_oldest_run(tmp_path: Path, store: Path) -> None:
    first = fetch(store)
    other = Node(tmp_path / "b", 0)
    other.train(500)
    other.end()
    upload(other, f"file://{tmp_path}/other")
    held_bytes = sum(path.stat().st_blocks * 512 for path in first.rglob("*.hlr"))
    second = fetch_run(f"{tmp_path}/other", tmp_path / "cache", most_bytes=held_bytes * 3 // 2)
    assert not first.exists()
    assert count_ranks(second) == {0: 500}


def test_what_lies_elsewhere_under_the_url_is_left_out(store: Path) -> None:
    (store / "nodes" / "a b").mkdir()
    (store / "nodes" / "empty").mkdir()
    folder = fetch(store)
    assert [one.message for one in describe_fetch(folder)] == [
        "'a b' was left out: it is not the name of a node",
        "node empty has no manifest: it ended before it could send one",
    ]


@pytest.mark.parametrize(
    "name", ["processes/box-7-0-0.hlr", "processes/box-7-x-0.1.hlr", "traces/rank0_box_7.1.pt.trace.json.gz"]
)
def test_what_hotloop_writes_is_sent(name: str) -> None:
    assert is_recorded_name(name)
