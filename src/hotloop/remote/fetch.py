"""A URL -> a run folder that holds the ranks of all nodes, in a bounded cache on this disk; and what is missing in it.

Blocks are checked against their names, and only those that changed since the last time are fetched. Names, sizes and
counts from the store are checked before anything is written.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import time
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hotloop.core.errors import RecordingError
from hotloop.core.frames import decode_object
from hotloop.core.report import Health

from .manifest import BLOCK_BYTES, MARKER, NODES, FileState, NodeManifest, block_name, decode_marker, write_json
from .store import ATTEMPTS, RemoteStore
from .uploader import read_nodes, url_key

NAME = "fetched.json"
SCHEMA = "hotloop.fetched/1"
MOST_CACHED_BYTES = 4 << 30
"""Size of all fetched runs; those read longest ago are removed first, and a larger run is refused."""
PARALLEL = 8
_MAX_PACKED_BYTES = BLOCK_BYTES + 1024
_MAX_FETCHED_BYTES = 256 << 20
_RANK_ZERO = re.compile(r"processes/.+-0-\d+(?:\.\d+)?\.hlr")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """A file of a node, and where it goes in the folder."""

    node: str
    name: str
    place: str
    state: FileState


def is_store(name: str) -> bool:
    """Whether this is a URL, or a folder on this machine that nodes have uploaded to."""
    return "://" in name or os.path.isfile(os.path.join(name, MARKER))


def fetch_run(url: str, cache: Path, *, most_bytes: int = MOST_CACHED_BYTES, attempts: int = ATTEMPTS) -> Path:
    """The run folder of the recording under ``url``, in the folder ``cache``. What could not be fetched is zeros there,
    which readers step over, and ``describe_fetch`` reports.

    Raises RecordingError (StoreError) with one line where there is no recording, or where it is refused.
    """
    store = RemoteStore(url, attempts=attempts)
    marker = store.get(MARKER, 1 << 16, partial(decode_marker, name=f"{store.shown}/{MARKER}"))
    if marker is None:
        raise RecordingError(
            f"{store.shown} contains no recording; hotloop run --record {store.shown} -- COMMAND makes one"
        )
    nodes, lines = read_nodes(store, marker.run_id)
    if not nodes:
        raise RecordingError(
            f"{store.shown} contains no recording of any node yet" + "".join(f"; {line}" for line in lines[:1])
        )
    size_bytes = sum(state.size_bytes for node in nodes for state in node.files.values())
    if size_bytes > most_bytes:
        raise RecordingError(
            f"{store.shown} is refused: it holds {size_bytes / 2**30:,.1f} GiB, more than the cache's "
            f"{most_bytes / 2**30:,.1f} GiB"
        )
    tail = re.sub(r"[^A-Za-z0-9_.-]", "-", store.shown.rpartition("/")[2])[:60].strip(".-") or "run"
    folder = cache / f"{tail}-{url_key(store.shown)[:8]}"
    with _hold(folder):
        held = _read_held(folder, marker.run_id)
        if not held:
            shutil.rmtree(folder, ignore_errors=True)
        (folder / "processes").mkdir(parents=True, exist_ok=True)
        fetching = _Fetching(store, folder, held)
        wanted = fetching.fetch_nodes(nodes)
        lines += fetching.lines + [_describe_node(node) for node in nodes if not node.ended]
        _remove_others(folder, {one.place for one in wanted})
        write_json(
            folder / NAME,
            {"schema": SCHEMA, "run_id": marker.run_id, "url": store.shown, "lines": lines, "held": fetching.held},
        )
    _trim(cache, folder, most_bytes)
    return folder


def holds_recording(url: str) -> bool:
    """Whether nodes have uploaded a recording to a URL or a folder. Raises StoreError where nobody responds."""
    return is_store(url) and RemoteStore(url).get(MARKER, 1 << 16, len) is not None


def describe_fetch(folder: Path) -> tuple[Health, ...]:
    """The missing parts of a fetched folder, one warning each; nothing for a folder that was recorded here."""
    lines = _read_fetched(folder).get("lines")
    return tuple(Health(level="warning", message=str(line)[:400]) for line in lines) if isinstance(lines, list) else ()


class _Fetching:
    """``held``: place in the folder -> the blocks that are there, where they are right."""

    def __init__(self, store: RemoteStore, folder: Path, held: Mapping[str, tuple[str, ...]]) -> None:
        self._store, self._folder, self._before = store, folder, held
        self.held: dict[str, tuple[str, ...]] = {}
        self.lines: list[str] = []

    def fetch_nodes(self, nodes: list[NodeManifest]) -> list[_Wanted]:
        wanted = plan_places(nodes)
        with ThreadPoolExecutor(PARALLEL) as pool:
            for node in nodes:
                files = [one for one in wanted if one.node == node.node]
                missing = [self._fetch(pool, one) for one in files]
                self.lines += [
                    f"{one.place} of node {one.node} lacks {len(lost)} of {len(one.state.blocks)} blocks: {lost[0]}"
                    for one, lost in zip(files, missing, strict=True)
                    if lost
                ]
        return wanted

    def _fetch(self, pool: ThreadPoolExecutor, one: _Wanted) -> list[str]:
        """Bring a file up to date; why blocks are missing, a line each."""
        path = self._folder / one.place
        path.parent.mkdir(parents=True, exist_ok=True)
        before = self._before.get(one.place, ()) if path.is_file() else ()
        blocks = one.state.blocks
        changed = [at for at, block in enumerate(blocks) if at >= len(before) or before[at] != block]
        with path.open("r+b" if before else "wb") as file:
            file.truncate(one.state.size_bytes)
            now, problems = list(blocks), []
            for first in range(0, len(changed), PARALLEL):
                some = changed[first : first + PARALLEL]
                for at, content in zip(some, pool.map(lambda at: self._fetch_block(one, at), some), strict=True):
                    if isinstance(content, str):
                        problems.append(content)
                        now[at] = "missing"
                        content = b""
                    file.seek(at * BLOCK_BYTES)
                    file.write(content.ljust(min(BLOCK_BYTES, one.state.size_bytes - at * BLOCK_BYTES), b"\0"))
        self.held[one.place] = tuple(now)
        return problems

    def _fetch_block(self, one: _Wanted, at: int) -> bytes | str:
        """The block's content, or why there is none."""
        checksum = one.state.blocks[at]
        try:
            read = partial(unpack, checksum=checksum)
            content = self._store.get(block_name(one.node, checksum), _MAX_PACKED_BYTES, read)
        except RecordingError as error:
            return str(error)
        return f"block {at} is missing" if content is None else content


def unpack(packed: bytes, checksum: str) -> bytes:
    """The content of a block, without taking more memory than a block has.

    Raises RecordingError unless it is what its name says.
    """
    try:
        content = zlib.decompressobj().decompress(packed, BLOCK_BYTES)
    except zlib.error:
        content = b""
    if hashlib.sha256(content).hexdigest() != checksum:
        raise RecordingError(f"the block {checksum[:12]} is damaged: its checksum is wrong")
    return content


def plan_places(nodes: list[NodeManifest]) -> list[_Wanted]:
    """Recordings and traces of all nodes side by side. Of what each node has once (run.json, ...), that of the node
    with rank 0 is the folder's own; the others' lie under nodes/. Of recordings of the same name, that of the later
    node gets the node's name in front."""
    lead = min(nodes, key=lambda node: (not any(map(_RANK_ZERO.fullmatch, node.files)), node.began_wall_s, node.node))
    wanted: list[_Wanted] = []
    taken: dict[str, str] = {}
    for node in nodes:
        for name, state in node.files.items():
            folder, _, base = name.rpartition("/")
            owner = taken.setdefault(name, node.node)
            if not folder:
                place = name if node is lead else f"{NODES}/{node.node}/{name}"
            else:
                place = name if owner == node.node else f"{folder}/{node.node}-{base}"
            wanted.append(_Wanted(node=node.node, name=name, place=place, state=state))
    return wanted


def _describe_node(node: NodeManifest) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(node.updated_wall_s))
    rows = sum(state.rows_count or 0 for state in node.files.values())
    return (
        f"node {node.node} has not finished its upload: anything after {at} ({rows:,} rows) is missing; if the run "
        "has ended, `hotloop upload RUN URL` on that node sends the rest"
    )


def _read_fetched(folder: Path) -> dict[str, object]:
    try:
        with (folder / NAME).open("rb") as file:
            content = decode_object(file.read(_MAX_FETCHED_BYTES)) or {}
    except OSError:
        return {}
    return content if content.get("schema") == SCHEMA else {}


def _read_held(folder: Path, run_id: str) -> dict[str, tuple[str, ...]]:
    """The contents of the folder after an earlier fetch of the same run."""
    fetched = _read_fetched(folder)
    held = fetched.get("held")
    if fetched.get("run_id") != run_id or not isinstance(held, dict):
        return {}
    return {str(place): tuple(map(str, blocks)) for place, blocks in held.items() if isinstance(blocks, list)}


def _remove_others(folder: Path, places: set[str]) -> None:
    """Remove what an earlier fetch brought and what is no longer part of the run."""
    for part in ("processes", "traces"):
        for path in (folder / part).glob("*"):
            if f"{part}/{path.name}" not in places:
                path.unlink(missing_ok=True)


def _trim(cache: Path, newest: Path, most_bytes: int) -> None:
    """Drop the runs that were fetched longest ago, beyond the bound."""
    runs = []
    for folder in cache.iterdir():
        if (folder / NAME).is_file():
            held_bytes = sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
            runs.append(((folder / NAME).stat().st_mtime_ns, held_bytes, folder))
    total_bytes = sum(held_bytes for _, held_bytes, _ in runs)
    for _, held_bytes, folder in sorted(runs):
        if total_bytes <= most_bytes:
            return
        if folder != newest:
            shutil.rmtree(folder, ignore_errors=True)
            total_bytes -= held_bytes


@contextmanager
def _hold(folder: Path) -> Iterator[None]:
    """One fetch of a run at a time. Raises RecordingError where the cache cannot be written."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / f".{folder.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise RecordingError(f"{folder} cannot be written: {error.strerror or error}; set XDG_CACHE_HOME") from error


def default_cache(environment: Mapping[str, str]) -> Path:
    """``$XDG_CACHE_HOME/hotloop/recordings``, or the same below ``~/.cache``."""
    base = environment.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "hotloop" / "recordings"
