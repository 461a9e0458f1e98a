"""SRC of the command line -> the files with the texts, each with its format; and each opened as plain bytes."""

from __future__ import annotations

import importlib
import io
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from hotloop.core.errors import UsageError
from hotloop.core.redact import redact_text

from .token_folder import read_json

FORMS = ("jsonl", "text", "parquet", "arrow")
TABLES = ("parquet", "arrow")
_SUFFIX_FORMS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "text",
    ".text": "text",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
_PACKINGS = (".gz", ".zst", ".xz", ".bz2")
_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """One source. ``form`` is one of FORMS, ``packing`` a suffix such as .gz or empty, ``stamp`` a version."""

    path: str
    form: str
    packing: str
    size_bytes: int
    stamp: str

    @property
    def is_streamed(self) -> bool:
        """True if the file can only be read from its start, so that one process reads it for all."""
        return bool(self.packing) or self.form in TABLES


def find_files(words: Sequence[str], form: str | None = None) -> tuple[tuple[TextFile, ...], int]:
    """The files in ``words`` (files, folders, URLs), in that order, and how many files in folders were left out.

    ``form`` None: by suffix. Raises UsageError for a file that does not exist or has an unknown format.
    """
    found: list[TextFile] = []
    left_out_count = 0
    for word in words:
        listed, is_folder = _list_remote(word) if is_remote(word) else _list_local(word)
        for path, size_bytes, stamp in listed:
            stem, packing = _split_packing(path)
            own = form or _SUFFIX_FORMS.get(os.path.splitext(stem)[1].lower())
            if own is None and is_folder:
                left_out_count += 1
                continue
            if own is None:
                raise UsageError(
                    f"{path}: cannot tell the format from the name; give --source-format ({', '.join(FORMS)})"
                )
            if packing and own in TABLES:
                raise UsageError(f"{path}: {own} files are compressed inside; unpack {packing} first")
            found.append(TextFile(path=path, form=own, packing=packing, size_bytes=size_bytes, stamp=stamp))
    if not found:
        raise UsageError(
            f"{', '.join(words)}: no file to read ({left_out_count} files of unknown format); give --source-format "
            f"({', '.join(FORMS)})"
        )
    return tuple(found), left_out_count


def is_remote(word: str) -> bool:
    """True for URLs such as s3://bucket/texts/."""
    return _REMOTE.match(word) is not None


def open_plain(path: str) -> BinaryIO:
    """The file's bytes as stored, local or at a URL; seekable. Raises UsageError."""
    try:
        if is_remote(path):
            system, inner = find_system(path)
            return cast(BinaryIO, system.open(inner, "rb"))
        return open(path, "rb", buffering=_BUFFER_BYTES)
    except (OSError, ImportError) as error:
        raise UsageError(f"{redact_text(path)} cannot be read: {error}") from error


def unpack(file: BinaryIO, packing: str, path: str) -> BinaryIO:
    """The unpacked bytes of an open file. Raises UsageError if the compressor's package is missing."""
    if packing == ".zst":
        try:
            import zstandard
        except ImportError:
            raise UsageError(
                f"{path} needs zstandard, which is not installed; run: pip install 'hotloop[data]'"
            ) from None
        return io.BufferedReader(ZstdFrames(file, zstandard.ZstdDecompressor()), _BUFFER_BYTES)
    if packing:
        module = importlib.import_module({".gz": "isal.igzip", ".xz": "lzma", ".bz2": "bz2"}[packing])
        return cast(BinaryIO, module.open(file, "rb"))
    return file


class ZstdFrames(io.RawIOBase):
    """The unpacked bytes of one zstd frame after another. zstandard's own reader accepts a truncated file as complete.

    Raises EOFError if a frame ends too early.
    """

    _STORED_BYTES = 1 << 10
    """Read at a time: a block of 4 bytes may unpack to 128 KiB (RFC 8878), so this many may become 32 MiB."""

    def __init__(self, file: BinaryIO, decompressor: Any) -> None:
        super().__init__()
        self._file = file
        self._decompressor = decompressor
        self._frame: Any = None
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            stored = self._file.read(self._STORED_BYTES)
            if not stored:
                if self._frame is not None:
                    raise EOFError("it ends in the middle of a frame")
                return 0
            self._ready = memoryview(b"".join(self._unpack(stored)))
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def _unpack(self, stored: bytes) -> Iterator[bytes]:
        while stored:
            self._frame = self._frame or self._decompressor.decompressobj()
            yield self._frame.decompress(stored)
            stored = self._frame.unused_data if self._frame.eof else b""
            self._frame = None if self._frame.eof else self._frame


def _split_packing(path: str) -> tuple[str, str]:
    stem, suffix = os.path.splitext(path)
    return (stem, suffix.lower()) if suffix.lower() in _PACKINGS else (path, "")


def _list_local(word: str) -> tuple[list[tuple[str, int, str]], bool]:
    path = Path(word)
    if path.is_dir():
        files = _list_saved_dataset(path)
        inner = sorted(_walk(path)) if files is None else files
        return [_describe_local(file) for file in inner], files is None
    if not path.exists():
        raise UsageError(f"{word}: no such file or folder; give files, folders or URLs with texts")
    return [_describe_local(path)], False


def _walk(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place, name) for name in names if not name.startswith("."))


def _describe_local(path: Path) -> tuple[str, int, str]:
    try:
        state = path.stat()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    return str(path), state.st_size, str(state.st_mtime_ns)


def _list_saved_dataset(folder: Path) -> list[Path] | None:
    """The Arrow files of a folder that ``datasets.save_to_disk`` wrote; None for any other folder."""
    if (folder / "dataset_dict.json").is_file():
        splits = read_json(folder / "dataset_dict.json").get("splits")
        names = ", ".join(str(folder / str(name)) for name in splits) if isinstance(splits, list) else "its subfolders"
        raise UsageError(f"{folder} holds several splits; give those you want: {names}")
    if not ((folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()):
        return None
    names = read_json(folder / "state.json").get("_data_files")
    if not isinstance(names, list) or not all(isinstance(one, dict) and "filename" in one for one in names):
        raise UsageError(f"{folder}/state.json names no data files; save the dataset again with save_to_disk")
    return [folder / Path(str(one["filename"])).name for one in names]


def find_system(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it. Raises UsageError."""
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        raise UsageError(f"{url} needs fsspec, which is not installed; run: pip install 'hotloop[remote]'") from None
    try:
        system, path = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise UsageError(f"{redact_text(url)} cannot be opened: {error}") from None
    return system, path


def _list_remote(url: str) -> tuple[list[tuple[str, int, str]], bool]:
    system, path = find_system(url)
    try:
        is_folder = bool(system.isdir(path))
        targets = sorted(system.find(path)) if is_folder else [path]
        facts = [system.info(target) for target in targets]
    except Exception as error:  # every driver raises its own errors
        raise UsageError(f"{redact_text(url)} cannot be read: {type(error).__name__}: {error}") from error
    return [
        (system.unstrip_protocol(target), int(fact.get("size") or 0), _stamp_of(fact))
        for target, fact in zip(targets, facts, strict=True)
    ], is_folder


def _stamp_of(fact: dict[str, Any]) -> str:
    return str(next((fact[key] for key in ("ETag", "etag", "mtime", "LastModified", "updated") if fact.get(key)), ""))
