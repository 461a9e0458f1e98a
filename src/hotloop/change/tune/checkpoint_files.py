"""A working copy -> its checkpoint files, and which of them are torn: cut off, or of no form that can be read.

Nothing in a file is executed: archives are checked by their sums, pickles are walked through, not loaded.
"""

from __future__ import annotations

import json
import os
import pickletools
import re
import struct
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import BinaryIO

from hotloop.core.checkpoint_names import is_checkpoint_name

# Of an archive that is larger, only the directory at its end is read.
MOST_SUMMED_BYTES = 1 << 30
MOST_FILES = 2_000
MOST_TEXT_BYTES = 64 << 20
PASSING_NAME = re.compile(r"\.(tmp|temp|part|partial|incomplete)\b", re.I)


def list_checkpoint_files(copy: Path) -> dict[str, int]:
    """Path below the copy -> time of the last change in ns, of files with a checkpoint's name and of the others in
    their folders, the copy's own folder excepted. Links lead to the user's files and are left out."""
    found: dict[str, int] = {}
    for folder, _, names in os.walk(copy):
        has_checkpoint = Path(folder) != copy and any(map(is_checkpoint_name, names))
        for name in names:
            path = Path(folder, name)
            if path.is_symlink() or not (has_checkpoint or is_checkpoint_name(name)) or len(found) >= MOST_FILES:
                continue
            found[str(path.relative_to(copy))] = path.stat().st_mtime_ns
    return found


def name_kind(path: str) -> str:
    """The path without its numbers: files of one kind are written at many steps.

    >>> name_kind("out/checkpoint-40/model.pt")
    'out/checkpoint-#/model.pt'
    """
    return re.sub(r"\d+", "#", path)


def split_torn(copy: Path, files: Mapping[str, int], kept: Collection[str]) -> tuple[list[str], list[str]]:
    """The files that are torn, and what is left over of a save: of a kind that an undisturbed run does not keep, and
    damaged, or with the name of a passing file.

    ``kept`` are the kinds that it keeps, and that can be read there.
    """
    others = [path for path in sorted(files) if name_kind(path) not in kept]
    return (
        [path for path in sorted(files) if name_kind(path) in kept and find_damage(copy / path)],
        [path for path in others if PASSING_NAME.search(path) or find_damage(copy / path)],
    )


def find_damage(path: Path) -> str:
    """Why a checkpoint cannot be read; empty where it can, and for a form that is not known."""
    try:
        with path.open("rb") as file:
            first = file.read(8)
            size = os.fstat(file.fileno()).st_size
            if not size:
                return "empty"
            if path.suffix == ".safetensors":
                return _check_safetensors(file, first, size)
            if path.suffix == ".json":
                json.loads(path.read_bytes()) if size <= MOST_TEXT_BYTES else None
            elif first[:2] == b"PK":
                return _check_archive(path, size)
            elif first[:1] == b"\x80":
                file.seek(0)
                for _ in pickletools.genops(file):
                    pass
            elif path.suffix in (".pt", ".pth", ".ckpt"):
                return "neither an archive nor a pickle"
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, struct.error) as error:
        return str(error) or type(error).__name__
    return ""


def _check_archive(path: Path, size: int) -> str:
    with zipfile.ZipFile(path) as archive:
        whole = sum(one.file_size for one in archive.infolist())
        bad = archive.testzip() if max(size, whole) <= MOST_SUMMED_BYTES else None
    return "" if bad is None else f"{bad} in it is damaged"


def _check_safetensors(file: BinaryIO, first: bytes, size: int) -> str:
    """The format: 8 bytes length of a JSON header, the header with the place of each tensor, the tensors."""
    length = struct.unpack("<Q", first)[0]
    if length > min(size, MOST_TEXT_BYTES):
        return "its header is cut off"
    header = json.loads(file.read(length))
    ends = [one["data_offsets"][1] for name, one in header.items() if name != "__metadata__"]
    return "" if size == 8 + length + max(ends, default=0) else "its tensors are cut off"


def read_kept(copy: Path) -> frozenset[str]:
    """Kinds of files that an undisturbed run keeps and that can be read: damage can be detected in these only."""
    return frozenset(name_kind(path) for path in list_checkpoint_files(copy) if not find_damage(copy / path))
