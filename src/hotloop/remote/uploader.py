"""Uploader: one node's run folder -> its mirror in a store, over and over, killed and continued at will.

Nothing is queued: each pass compares the files with what was sent, block by block. So an endpoint that is dead or slow
costs no memory, and what changed twice meanwhile is sent once. Blocks are named by their content; a manifest that is
written after them makes them count. A pass that fails leaves the previous manifest, which is valid. upload.json says
what did not arrive, from the end of ``hotloop run --record`` to the reports of the run.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import time
import zlib
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from hotloop.core.errors import RecordingError, UsageError
from hotloop.core.frames import decode_object
from hotloop.core.report import Health

from .manifest import (
    MARKER,
    MAX_MANIFEST_BYTES,
    NODE_NAME,
    NODES,
    RUN_ID,
    SLOTS,
    FileState,
    Marker,
    NodeManifest,
    block_name,
    decode_manifest,
    decode_marker,
    describe_machine,
    encode_manifest,
    encode_marker,
    list_files,
    name_node,
    read_blocks,
    read_last,
    read_start,
    slot_name,
    write_json,
)
from .store import RemoteStore, StoreError

CountRows = Callable[[Path, int], "int | None"]
"""Rows in a recording, given how many were there before; None where it cannot be read yet."""

STATE_FILE, LOCK_FILE = "upload-state.json", "upload.lock"
PARALLEL = 8
"""Blocks on their way at a time: with their compressed copies, 1 MiB of memory."""
PUBLISH_S = 15.0
"""A pass that takes longer says in between what has arrived."""
GRACE_S = 60.0
"""How long a node that has not said that it ended counts as recording after its last sign of life."""
_MAX_NODES = 10_000
UPLOAD_FILE = "upload.json"
SCHEMA = "hotloop.upload/1"
UNREADABLE = "the missing part could not be read, or is larger than 2 GiB"
_MOST_BYTES = 1 << 20
Count = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """The fate of the recording of one node. ``lost_rows_count`` are rows on this disk that are not known to
    have arrived, ``late_files_count`` in how many files something is missing; ``reason`` is None if all arrived."""

    url: str
    rows_count: Count
    lost_rows_count: Count
    late_files_count: Count
    reason: str | None

    def describe(self) -> str:
        """The missing parts, in one sentence."""
        return (
            f"{self.lost_rows_count:,} of {self.rows_count:,} rows, in {self.late_files_count} files, did not arrive "
            f"at {self.url} ({self.reason})"
        )


def count_uploaded(
    folder: Path, url: str, arrived: NodeManifest | None, count_rows: CountRows, reason: str | None
) -> Uploaded:
    """Compare the folder with what is known to have arrived. ``reason`` is why not all of it may have."""
    files = {} if arrived is None else arrived.files
    rows = lost = late = 0
    for name, path in list_files(folder).items():
        state = files.get(name)
        if not name.endswith(".hlr"):
            late += state is None
            continue
        known = (0 if state is None else state.rows_count) or 0
        here = max(known, count_rows(path, known) or 0)
        rows, lost, late = rows + here, lost + here - known, late + (here > known)
    has_ended = arrived is not None and arrived.ended
    is_whole = has_ended and not late
    return Uploaded(
        url=url,
        rows_count=rows,
        lost_rows_count=lost,
        late_files_count=late,
        reason=None if is_whole else reason or (UNREADABLE if has_ended else "the store did not accept it in time"),
    )


def write_uploaded(folder: Path, uploaded: Uploaded) -> None:
    """Raises OSError."""
    write_json(folder / UPLOAD_FILE, {"schema": SCHEMA, **asdict(uploaded)})


def describe_upload(folder: Path) -> tuple[Health, ...]:
    """One warning where not all arrived; nothing where all went well or the file is not valid."""
    try:
        with (folder / UPLOAD_FILE).open("rb") as file:
            uploaded = msgspec.convert(decode_object(file.read(_MOST_BYTES)), Uploaded)
    except (OSError, msgspec.ValidationError):
        return ()
    text = f"{uploaded.describe()[:700]}; hotloop upload {folder.name} URL sends the rest"
    return () if uploaded.reason is None else (Health(level="warning", message=text),)


class PrefixTaken(UsageError):
    """The URL holds another run."""


class Uploader:
    """Mirrors ``folder`` under the URL of ``store``. ``run_id`` is what the nodes of the run agreed on, None if they
    did not: then a node belongs to the run under the URL if both were recording at the same time.

    ``is_running``: whether more is to come. Raises UsageError for a name that cannot be a run's id.
    """

    def __init__(
        self, folder: Path, store: RemoteStore, *, run_id: str | None, count_rows: CountRows, is_running: bool
    ) -> None:
        if run_id is not None and not RUN_ID.fullmatch(run_id):
            raise UsageError(f"the id {run_id!r} of the run: use letters, digits, '.', '_' and '-' only")
        self._folder, self._store, self._given_id = folder, store, run_id
        self._count_rows = count_rows
        self._is_running = is_running
        began_wall_s, pid = read_start(folder)
        kept = read_state(folder, store.shown)
        self._known = kept is not None
        self.manifest = kept or NodeManifest(
            run_id=run_id or os.urandom(8).hex(),
            node=name_node(socket.gethostname()),
            machine=describe_machine(),
            pid=pid,
            began_wall_s=began_wall_s or time.time(),
        )
        """The parts that are known to have arrived."""
        self._stored = set(self.manifest.checksums)
        self._joined = False
        self._before: frozenset[str] = frozenset()
        """Blocks of the manifest in the other slot."""

    def join(self) -> None:
        """Claim the URL for this run, or find that it is this run's already.

        Raises PrefixTaken when it is another run's, StoreError when the store does not respond.
        """
        marker = self._read_marker()
        if marker is None:
            mine = Marker(
                run_id=self.manifest.run_id,
                began_wall_s=self.manifest.began_wall_s,
                is_named=self._given_id is not None,
            )
            self._store.create(MARKER, encode_marker(mine))
            marker = self._read_marker()
        if marker is None:
            raise StoreError(f"{self._store.shown}/{MARKER} was written but is not there")
        if marker.run_id != self.manifest.run_id:
            self._check_marker(marker)
            self.manifest = replace(self.manifest, run_id=marker.run_id)
        self._joined = True
        self._save_state()

    def upload(self, *, ended: bool) -> None:
        """One pass over all files. Raises StoreError; what has arrived until then need not be sent again.

        The first pass joins the run; see there for what that raises.
        """
        if not self._joined:
            self.join()
        began_s = time.monotonic()
        files = dict(self.manifest.files)
        with ThreadPoolExecutor(PARALLEL) as pool:
            for name, path in list_files(self._folder).items():
                state = self._send_file(pool, name, path)
                if state is not None:
                    files[name] = state
                if time.monotonic() - began_s > PUBLISH_S and files != self.manifest.files:
                    self._publish(files, ended=False)
                    began_s = time.monotonic()
            self._publish(files, ended=ended)
            if ended:
                self._confirm()

    def _send_file(self, pool: ThreadPoolExecutor, name: str, path: Path) -> FileState | None:
        """None where the file went away or cannot be read: what was sent of it stays."""
        before = self.manifest.files.get(name)
        known_rows = 0 if before is None else before.rows_count or 0
        rows_count = self._count_rows(path, known_rows) if name.endswith(".hlr") else None
        try:
            blocks, checksums, size_bytes = read_blocks(path), list[str](), 0
            while some := list(islice(blocks, PARALLEL)):
                checksums += pool.map(self._send_block, some)
                size_bytes += sum(map(len, some))
        except OSError:
            return None
        return FileState(size_bytes=size_bytes, rows_count=rows_count, blocks=tuple(checksums))

    def _send_block(self, content: bytes) -> str:
        """Its checksum, once it is in the store."""
        checksum = hashlib.sha256(content).hexdigest()
        if checksum not in self._stored:
            self._store.put(block_name(self.manifest.node, checksum), zlib.compress(content, 1))
            self._stored.add(checksum)
        return checksum

    def _publish(self, files: dict[str, FileState], *, ended: bool) -> None:
        """Make what was sent count; what neither slot's manifest needs any more goes."""
        newest = replace(
            self.manifest,
            generation=self.manifest.generation + 1,
            updated_wall_s=read_last(self._folder) if ended else time.time(),
            ended=ended,
            files=files,
        )
        self._store.put(slot_name(newest.node, newest.generation), encode_manifest(newest))
        doomed = self._before - self.manifest.checksums - newest.checksums
        self._before, self.manifest = self.manifest.checksums, newest
        self._save_state()
        self._remove(doomed)

    def _remove(self, checksums: AbstractSet[str]) -> None:
        """Blocks that no manifest names any more."""
        self._stored -= checksums
        for checksum in sorted(checksums):
            try:
                self._store.remove(block_name(self.manifest.node, checksum))
            except StoreError:
                return  # it takes space, nothing else: stores may forbid to remove

    def _confirm(self) -> None:
        """Whether the store has what it said it took. Raises StoreError, and the next pass sends what is missing."""
        name = slot_name(self.manifest.node, self.manifest.generation)
        if self._store.get(name, MAX_MANIFEST_BYTES, partial(decode_manifest, name=name)) != self.manifest:
            raise StoreError(f"{self._store.shown}/{name} is not what was written")
        there = set(self._store.list_names(f"{NODES}/{self.manifest.node}/blocks"))
        missing = self.manifest.checksums - there
        if missing:
            self._stored -= missing
            raise StoreError(f"{self._store.shown} lacks {len(missing)} blocks that it accepted")
        self._remove(there - self.manifest.checksums - self._before)

    def _read_marker(self) -> Marker | None:
        return self._store.get(MARKER, 1 << 16, partial(decode_marker, name=f"{self._store.shown}/{MARKER}"))

    def _check_marker(self, marker: Marker) -> None:
        """Raises PrefixTaken unless this node may belong to the run of that marker."""
        shown, free = self._store.shown, "give a URL with nothing under it"
        if self._given_id is not None or self._known:
            raise PrefixTaken(f"{shown} holds the run {marker.run_id}, not {self.manifest.run_id}; {free}")
        if marker.is_named:
            raise PrefixTaken(
                f"{shown} holds the run {marker.run_id}; to record as a node of that run, give --record-id "
                f"{marker.run_id}; otherwise, {free}"
            )
        last_wall_s = time.time() if self._is_running else read_last(self._folder)
        spans = [(marker.began_wall_s, marker.began_wall_s + GRACE_S)]
        spans += [self._span(node) for node in read_nodes(self._store, marker.run_id)[0]]
        for began_wall_s, until_wall_s in spans[1:] or spans:
            if began_wall_s > last_wall_s or until_wall_s < self.manifest.began_wall_s:
                raise PrefixTaken(
                    f"{shown} holds the run {marker.run_id}, which was not recording at the same time as this one; "
                    f"{free}, or give --record-id {marker.run_id} if it is a node of that run"
                )

    def _span(self, node: NodeManifest) -> tuple[float, float]:
        """When a node was recording, in seconds since 1970."""
        is_dead = node.machine == self.manifest.machine and not _is_alive(node.pid)
        return node.began_wall_s, node.updated_wall_s + (0.0 if node.ended or is_dead else GRACE_S)

    def _save_state(self) -> None:
        text = encode_manifest(self.manifest).decode()
        try:
            write_json(self._folder / STATE_FILE, {"url": url_key(self._store.shown), "manifest": text})
        except OSError:
            return  # a full disk: without it a later upload sends everything again


def url_key(shown: str) -> str:
    return hashlib.sha256(shown.encode()).hexdigest()[:32]


def read_state(folder: Path, shown: str) -> NodeManifest | None:
    """The parts known to have arrived at a URL (as it is shown, without secrets); None where nothing is known."""
    try:
        kept = json.loads((folder / STATE_FILE).read_text())
        return decode_manifest(kept["manifest"].encode(), STATE_FILE) if kept["url"] == url_key(shown) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecordingError):
        return None


def read_nodes(store: RemoteStore, run_id: str) -> tuple[list[NodeManifest], list[str]]:
    """The newest good manifest of every node of a run, in the order of their names; and a line for each node that is
    left out. Raises StoreError."""
    nodes: list[NodeManifest] = []
    lines: list[str] = []
    names = store.list_names(NODES)
    if len(names) > _MAX_NODES:
        raise RecordingError(f"{store.shown} is refused: it has {len(names):,} nodes")
    for name in names:
        if not NODE_NAME.fullmatch(name):
            lines.append(f"{name[:80]!r} was left out: it is not the name of a node")
            continue
        node, line = read_node(store, name)
        if node is None:
            lines.append(line)
        elif node.run_id != run_id:
            lines.append(f"node {name} was left out: it belongs to the run {node.run_id}")
        else:
            nodes.append(node)
    return nodes, lines


def read_node(store: RemoteStore, name: str) -> tuple[NodeManifest | None, str]:
    """The newest good manifest of a node, or None and why there is none."""
    good: list[NodeManifest] = []
    line = f"node {name} has no manifest: it ended before it could send one"
    for slot in SLOTS:
        place = f"{NODES}/{name}/{slot}"
        try:
            found = store.get(place, MAX_MANIFEST_BYTES, partial(decode_manifest, name=place))
        except RecordingError as error:
            line = str(error)
            continue
        if found is not None and found.node == name:
            good.append(found)
    return max(good, key=lambda one: one.generation, default=None), line


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """One upload of a folder at a time. Raises UsageError while another one is running."""
    with (folder / LOCK_FILE).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"{folder} is already being uploaded; wait until its run ends") from None
        yield


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
