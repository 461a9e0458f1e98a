"""A pickle file -> its numbers, text and containers. Nothing that it names is looked up, so none of it can run."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, NoReturn

from hotloop.core.errors import RecordingError


class _PlainUnpickler(pickle.Unpickler):
    """Knows only numbers, text and containers."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise RecordingError(f"it loads {module}.{name}, which can run code; do not load this file with pickle")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise RecordingError("it refers to an object outside of it, which files of plain values never do")


def load_plain(path: Path) -> object:
    """The content of the file. Raises RecordingError if it is damaged, or names code."""
    try:
        with path.open("rb") as file:
            return _PlainUnpickler(file).load()
    except (RecordingError, OSError) as error:
        raise RecordingError(f"{path} was not read: {error}.") from None
    except MemoryError:
        raise
    except Exception as error:  # damage may raise nearly any of them
        first_line = " ".join(str(error).split())[:200]
        raise RecordingError(
            f"{path} is not a complete pickle of plain values: {type(error).__name__}: {first_line}."
        ) from None
