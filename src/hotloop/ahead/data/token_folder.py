"""A folder of tokens: the names of its files, its manifest, and its completeness. Standard library only.

DIR/
  tokens-00000.bin   the tokens of all documents of the shard, one after another
  tokens-00000.idx   Megatron's index: type of the tokens, length and place of each document
  manifest.json      what the tokens were made of and how many there are; sizes and SHA-256; written last
  job.json           the sources and settings, by which the same command is recognized
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop.core.decode import decode
from hotloop.core.errors import UsageError
from hotloop.core.tokenizing import TokenShard

MANIFEST_SCHEMA = "hotloop.tokens/1"
MANIFEST = "manifest.json"
TOKEN_BYTES = {"uint16": 2, "int32": 4}
"""Types of tokens, with the bytes of one token."""

_MOST_JSON_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFolder:
    """A folder with a complete manifest. ``content`` is the manifest as in the file."""

    path: str
    token_type: str
    documents_count: int
    tokens_count: int
    shards: tuple[TokenShard, ...]
    content: Mapping[str, Any]

    @property
    def token_bytes(self) -> int:
        """Bytes of one token."""
        return TOKEN_BYTES[self.token_type]


def shard_name(number: int) -> str:
    """The name of both files of a shard, without suffix.

    >>> shard_name(3)
    'tokens-00003'
    """
    return f"tokens-{number:05d}"


def write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
    """Write the manifest with its own checksum."""
    body = {"schema": MANIFEST_SCHEMA, **content}
    write_json(folder / MANIFEST, {**body, "checksum": _checksum_of(body)})


def open_folder(folder: str | Path) -> TokenFolder:
    """The manifest of a folder, after a check that every shard exists in its full size. Raises UsageError."""
    root = Path(folder)
    if not (root / MANIFEST).is_file():
        raise UsageError(
            f"{root} has no {MANIFEST}: it is not a folder of tokens, or is incomplete; run hotloop tokenize"
        )
    found = parse_manifest(read_json(root / MANIFEST), str(root))
    for shard in found.shards:
        file = root / f"{shard.name}.bin"
        size = file.stat().st_size if file.is_file() else None
        if size != shard.bin_bytes:
            what = "is missing" if size is None else f"has {size} bytes instead of {shard.bin_bytes}"
            raise UsageError(f"{file} {what}; tokenize into a new folder")
    return found


def parse_manifest(content: Any, path: str) -> TokenFolder:
    """The manifest's facts. Raises UsageError if it is damaged or of another kind."""
    schema = content.get("schema") if isinstance(content, dict) else type(content).__name__
    if schema != MANIFEST_SCHEMA:
        raise UsageError(
            f"{path}/{MANIFEST}: its schema is {schema!r}, not {MANIFEST_SCHEMA!r}; give a folder of hotloop tokenize"
        )
    body = {key: value for key, value in content.items() if key != "checksum"}
    if content.get("checksum") != _checksum_of(body):
        raise UsageError(f"{path}/{MANIFEST} is damaged: its checksum differs; tokenize into a new folder")
    shards = decode(tuple[TokenShard, ...], content.get("shards"))
    token_type = content.get("token_type")
    if token_type not in TOKEN_BYTES or any(
        one.bin_bytes != one.tokens_count * TOKEN_BYTES[token_type] or one.tokens_count < 0 for one in shards
    ):
        raise UsageError(f"{path}/{MANIFEST} is damaged: {token_type} shards of impossible size")
    return TokenFolder(
        path=path,
        token_type=token_type,
        documents_count=sum(one.documents_count for one in shards),
        tokens_count=sum(one.tokens_count for one in shards),
        shards=shards,
        content=content,
    )


def verify_folder(folder: TokenFolder) -> None:
    """Compare every file with its SHA-256. Raises UsageError naming the first that differs."""
    for shard in folder.shards:
        for suffix, wanted in ((".bin", shard.sha256), (".idx", shard.idx_sha256)):
            file = Path(folder.path, shard.name + suffix)
            if hash_file(file) != wanted:
                raise UsageError(
                    f"{file} is damaged: its SHA-256 differs from the manifest; tokenize into a new folder"
                )


def hash_file(file: Path) -> str:
    """SHA-256 of a file's bytes. Raises UsageError if it cannot be read."""
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error


def read_json(path: Path) -> Any:
    """The value of a JSON file of bounded size. Raises UsageError."""
    try:
        with path.open("rb") as stream:
            text = stream.read(_MOST_JSON_BYTES + 1)
        if len(text) > _MOST_JSON_BYTES:
            raise UsageError(f"{path} has more than {_MOST_JSON_BYTES} bytes; it is not a file of this kind")
        return json.loads(text)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is damaged: {error}") from error


def write_json(path: Path, content: Any) -> None:
    """Write JSON so that, even after a crash, the file is complete or unchanged."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as stream:
        json.dump(content, stream, indent=1)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)


def _checksum_of(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
