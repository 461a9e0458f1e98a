"""Bytes of token files, mapped in place from a disk."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

from hotloop.core.errors import UsageError


class MappedFiles:
    """The files of a folder, memory-mapped when first read."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._maps: dict[str, mmap.mmap] = {}

    def read(self, name: str, start: int, end: int) -> bytes:
        """These bytes of a file. Raises UsageError if it has fewer."""
        found = self._maps.get(name)
        if found is None:
            file = Path(self._folder, name)
            try:
                with file.open("rb") as stream:
                    found = self._maps[name] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise UsageError(f"{file} cannot be mapped: {error}") from error
        content = found[start:end]
        if len(content) != end - start:
            raise UsageError(f"{self._folder}/{name} has only {len(found)} bytes; tokenize into a new folder")
        return content

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": {}}  # a newly started process maps the files itself
