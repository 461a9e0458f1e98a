"""Which files of a run folder are sent, in which blocks, and the manifest of a node that says so.

Manifests come from a store that anybody may have written to: nothing that they say is trusted before it was checked.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from hotloop.core.errors import RecordingError
from hotloop.core.frames import decode_object
from hotloop.core.output_file import write_whole

T = TypeVar("T")


def list_files(folder: Path) -> dict[str, Path]:
    """Name in the store -> path, recordings first."""
    found: dict[str, Path] = {}
    for part in ("processes", "", "traces"):
        try:
            names = sorted(os.listdir(folder / part))
        except OSError:
            continue
        for name in names:
            path, sent = folder / part / name, f"{part}/{name}" if part else name
            if is_recorded_name(sent) and (sent not in found) and path.is_file() and len(found) < MAX_FILES:
                found[sent] = path
    return found


def read_blocks(path: Path) -> Iterator[bytes]:
    """The blocks of a file. Raises OSError, also for a file of more than MAX_FILE_BYTES."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size > MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        yield from iter(partial(file.read, BLOCK_BYTES), b"")


def read_start(folder: Path) -> tuple[float, int]:
    """When the run in a folder began (seconds since 1970), and the pid of its ``hotloop run``; 0 where unknown."""
    try:
        manifest = decode_object((folder / "run.json").read_bytes()) or {}
    except OSError:
        manifest = {}
    began, pid = manifest.get("started_wall_s"), manifest.get("pid")
    return float(began) if isinstance(began, (int, float)) else 0.0, pid if isinstance(pid, int) and pid > 0 else 0


def read_last(folder: Path) -> float:
    """When a run's files were last written, in seconds since 1970; 0 without any."""
    times = [0.0]
    for path in list_files(folder).values():
        try:
            times.append(path.stat().st_mtime)
        except OSError:
            continue
    return max(times)


def describe_machine() -> str:
    """A name of this machine as far as its process ids reach: kernel boot and pid namespace."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/pid")
    except OSError:
        name = secrets.token_hex(16)  # nothing tells: no other node is taken for one of this machine
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def name_node(host: str) -> str:
    """A name for this node that no other has, even on a host of the same name."""
    return f"{re.sub(r'[^A-Za-z0-9-]', '-', host.partition('.')[0])[:40].strip('-') or 'node'}-{secrets.token_hex(4)}"


def write_json(path: Path, content: object) -> None:
    """Replace a file in one move. Raises OSError."""
    write_whole(path, json.dumps(content))


SCHEMA = "hotloop.node/1"
MARKER_SCHEMA = "hotloop.remote/1"
MARKER = "recording.json"
"""Says which run is under a URL."""
NODES = "nodes"
SLOTS = ("manifest-0.json", "manifest-1.json")
"""Written in turn, so a kill during one leaves the other. The one with the larger generation counts."""

BLOCK_BYTES = 1 << 16
"""The unit of comparing and sending."""
MAX_MANIFEST_BYTES = 64 << 20
MAX_FILE_BYTES = 2 << 30
MAX_FILES = 100_000

NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,80}")
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,80}")
_FILE_NAME = re.compile(
    r"processes/[A-Za-z0-9][A-Za-z0-9_.@+-]{0,200}\.hlr"
    r"|traces/[A-Za-z0-9][A-Za-z0-9_.@+-]{0,200}\.json(?:\.gz)?"
    r"|(?:run|outcome|cores|environment|probe|verdict|exports)\.json|devices\.jsonl"
)


def _matching(pattern: str) -> Meta:
    return Meta(pattern=rf"^(?:{pattern})\Z")


RunId = Annotated[str, _matching(RUN_ID.pattern)]
FileName = Annotated[str, _matching(_FILE_NAME.pattern)]
Checksum = Annotated[str, _matching(r"[0-9a-f]{64}")]
Seconds = Annotated[float, Meta(ge=0, lt=1e11)]
"""Since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """A file as it was sent. ``rows_count`` is None unless it is a recording; a file may have grown by a few rows
    while it was read, so it is the least that arrived."""

    size_bytes: Annotated[int, Meta(ge=0, le=MAX_FILE_BYTES)]
    rows_count: Annotated[int, Meta(ge=0, le=1 << 60)] | None
    blocks: tuple[Checksum, ...]

    def __post_init__(self) -> None:
        if len(self.blocks) != math.ceil(self.size_bytes / BLOCK_BYTES):
            raise ValueError(f"a file of {self.size_bytes:,} bytes has not {len(self.blocks):,} blocks")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeManifest:
    """One node of a run. ``machine`` distinguishes machines (and containers), ``pid`` is its ``hotloop run``'s.

    ``updated_wall_s`` is when it was last known to record: after it ended, when its last file was written.
    """

    run_id: RunId
    node: Annotated[str, _matching(NODE_NAME.pattern)]
    machine: Annotated[str, Meta(max_length=64)]
    pid: Annotated[int, Meta(ge=0, le=1 << 32)]
    began_wall_s: Seconds
    generation: Annotated[int, Meta(ge=0, le=1 << 53)] = 0
    updated_wall_s: Seconds = 0.0
    ended: bool = False
    files: Annotated[dict[FileName, FileState], Meta(max_length=MAX_FILES)] = field(default_factory=dict)

    @property
    def checksums(self) -> frozenset[str]:
        """Checksums of all blocks that were sent."""
        return frozenset(block for file in self.files.values() for block in file.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The run that a URL belongs to. ``is_named``: its id was given, so other nodes have to give it too."""

    run_id: RunId
    began_wall_s: Seconds
    is_named: bool


def is_recorded_name(name: str) -> bool:
    """Whether a file of this name is part of a recording. Pointers (.where) and accesses (.access) name other places
    of a machine and are never taken from a store."""
    return _FILE_NAME.fullmatch(name) is not None


def block_name(node: str, checksum: str) -> str:
    return f"{NODES}/{node}/blocks/{checksum}"


def slot_name(node: str, generation: int) -> str:
    return f"{NODES}/{node}/{SLOTS[generation % len(SLOTS)]}"


def encode_manifest(manifest: NodeManifest) -> bytes:
    text = json.dumps(asdict(manifest), separators=(",", ":"), sort_keys=True)
    checksum = hashlib.sha256(text.encode()).hexdigest()
    return f'{{"schema":"{SCHEMA}","sha256":"{checksum}","node":{text}}}'.encode()


def decode_manifest(data: bytes, name: str) -> NodeManifest:
    """Raises RecordingError for anything that ``encode_manifest`` would not write; ``name`` is used in its text."""
    whole = _read_schema(data, SCHEMA, name)
    given = whole.get("node")
    text = json.dumps(given, separators=(",", ":"), sort_keys=True)
    if not isinstance(given, dict) or hashlib.sha256(text.encode()).hexdigest() != whole.get("sha256"):
        raise RecordingError(f"{name} is damaged: its checksum is wrong")
    return _convert(given, NodeManifest, name)


def encode_marker(marker: Marker) -> bytes:
    return json.dumps({"schema": MARKER_SCHEMA, **asdict(marker)}).encode()


def decode_marker(data: bytes, name: str) -> Marker:
    return _convert(_read_schema(data, MARKER_SCHEMA, name), Marker, name)


def _convert(given: dict[str, Any], kind: type[T], name: str) -> T:
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise RecordingError(f"{name} is refused: {' '.join(str(error).split())[:160]}") from None


def _read_schema(data: bytes, schema: str, name: str) -> dict[str, Any]:
    content = decode_object(data)
    if content is None:
        raise RecordingError(f"{name} is damaged: it contains no JSON object")
    if content.get("schema") != schema:
        raise RecordingError(
            f"{name} has the schema {str(content.get('schema'))[:40]!r}; this version reads {schema}: upgrade hotloop"
        )
    return content
