"""A job of tokenizing: what decides its bytes, how far it is, and both kept in its folder for the time after a kill."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.core.redact import redact_text

from .documents import Rejected
from .shard_writer import ShardWriter
from .text_chunks import Chunk, Cursor, CutRules
from .text_files import TextFile
from .token_folder import read_json, write_json
from .token_worker import EncodedChunk
from .tokenizer_file import TokenizerFile

JOB, PROGRESS, LOCK = "job.json", "progress.json", ".lock"
_JOB_SCHEMA = "hotloop.tokenize-job/1"
_OPTIONS = {
    "column": "--column",
    "documents": "--documents",
    "document_limit_bytes": "--document-limit in bytes",
    "end_id": "the id that --append-eos appends",
    "special_tokens": "--special-tokens",
    "shard_tokens": "--shard-tokens",
}
"""Keys of a job, as the command line names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeJob:
    """What decides the bytes of a folder of tokens."""

    files: tuple[TextFile, ...]
    tokenizer: TokenizerFile
    cut: CutRules
    end_id: int | None
    special_tokens: bool
    shard_tokens: int

    def describe(self) -> dict[str, Any]:
        """The job as plain JSON; two jobs are the same when these are equal."""
        return {
            "schema": _JOB_SCHEMA,
            "sources": [
                {"path": redact_text(one.path), "bytes": one.size_bytes, "format": one.form, "version": one.stamp}
                for one in self.files
            ],
            "tokenizer": {"sha256": self.tokenizer.sha256, "library": self.tokenizer.library},
            "column": self.cut.column,
            "documents": "file" if self.cut.whole_files else "line",
            "document_limit_bytes": self.cut.limit_bytes,
            "end_id": self.end_id,
            "special_tokens": self.special_tokens,
            "shard_tokens": self.shard_tokens,
        }


@dataclass(slots=True)
class JobState:
    """How far a job is; ``size_bytes`` counts stored bytes of the sources."""

    cursor: Cursor = field(default_factory=Cursor)
    size_bytes: int = 0
    documents_count: int = 0
    tokens_count: int = 0
    unknown_count: int = 0
    rejected: Rejected = field(default_factory=Rejected)

    def take(self, chunk: Chunk, encoded: EncodedChunk, token_bytes: int) -> None:
        """Count a chunk that was written."""
        self.cursor = chunk.following
        self.size_bytes += chunk.size_bytes
        self.documents_count += len(encoded.lengths)
        self.tokens_count += len(encoded.tokens) // token_bytes
        self.unknown_count += encoded.unknown_count
        for kind, count in encoded.rejected.counts.items():
            self.rejected.add(kind, encoded.rejected.firsts[kind], count)


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Make the folder and keep others from writing into it; take it back if nothing came of it. Raises UsageError."""
    was_there = folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = {entry.name for entry in folder.iterdir()} - {LOCK, JOB + ".tmp"}
        if names and JOB not in names:
            raise UsageError(f"{folder} holds other files ({min(names)}); give a new or empty folder with -o")
        descriptor = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}; give another folder with -o") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                f"another hotloop tokenize is writing {folder}; wait for it, or give another folder"
            ) from None
        if os.fstat(descriptor).st_nlink == 0:  # removed by the one that held it
            raise UsageError(f"another hotloop tokenize has just given up {folder}; type the same command again")
        try:
            yield
        except BaseException:
            _remove_empty(folder, was_there)
            raise
    finally:
        os.close(descriptor)


def _remove_empty(folder: Path, was_there: bool) -> None:
    """Of a job that wrote nothing leave no lock, and no folder that it made."""
    if {entry.name for entry in folder.iterdir()} == {LOCK}:
        (folder / LOCK).unlink()
        if not was_there:
            folder.rmdir()


def check_folder(folder: Path, description: dict[str, Any]) -> bool:
    """Whether the folder belongs to this very job already. Raises UsageError where it belongs to another."""
    if not (folder / JOB).is_file():
        return False
    kept = read_json(folder / JOB)
    if not isinstance(kept, dict):
        raise UsageError(f"{folder}/{JOB} is damaged; give a new folder with -o")
    differing = next((key for key in description if kept.get(key) != description[key]), None)
    if differing is None:
        return True
    if differing == "sources":
        shown = f"the sources changed ({_name_changed_source(kept.get('sources'), description['sources'])})"
    elif differing == "tokenizer":
        shown = f"the tokenizer is {_name_tokenizer(kept)} there and {_name_tokenizer(description)} here"
    else:
        here = description[differing]
        shown = f"{_OPTIONS.get(differing, differing)} is {_describe(kept.get(differing))} there and "
        shown += f"{here} here" if here is not None else "this command appends none"
    raise UsageError(f"{folder} belongs to another job: {shown}; give a new folder with -o")


def _describe(value: Any) -> Any:
    return "none" if value is None else value


def _name_changed_source(kept: Any, sources: Sequence[dict[str, Any]]) -> str:
    if not isinstance(kept, list) or len(kept) != len(sources):
        return f"{len(kept) if isinstance(kept, list) else 0} files there, {len(sources)} here"
    changed = next(new for old, new in zip(kept, sources, strict=True) if old != new)
    return f"such as {changed['path']}"


def _name_tokenizer(description: dict[str, Any]) -> str:
    kept = description.get("tokenizer")
    return f"{str(kept.get('sha256'))[:12]} of {kept.get('library')}" if isinstance(kept, dict) else "unknown"


def check_place(job: TokenizeJob, folder: Path) -> None:
    """An output beside the inputs would be read as one of them by the next run."""
    place = folder.resolve()
    for file in job.files:
        if place in Path(file.path).resolve().parents:
            raise UsageError(f"-o {folder} holds the source {file.path}; give a folder of its own")


def read_progress(folder: Path, writer: ShardWriter) -> JobState:
    """The state of a job that was interrupted, and the writer's files cut back to it."""
    if not (folder / PROGRESS).is_file():
        writer.resume({"shards": [], "tokens_count": 0, "documents_count": 0, "sha256": ""})
        return JobState()
    kept = read_json(folder / PROGRESS)
    try:
        state = kept["state"]
        writer.resume(kept["writer"])
        return JobState(**{**state, "cursor": Cursor(**state["cursor"]), "rejected": Rejected(**state["rejected"])})
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{folder}/{PROGRESS} is damaged ({error!r}); delete the folder and start again") from error


def write_progress(folder: Path, writer: ShardWriter, state: JobState) -> None:
    write_json(folder / PROGRESS, {"writer": writer.sync(), "state": asdict(state)})


def remove_own_files(folder: Path) -> None:
    for name in (JOB, PROGRESS):
        (folder / name).unlink(missing_ok=True)
