"""View: how one kind of report becomes a Document, in one file under views/."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .document import Document
from .renderer import Surface


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """``describe`` turns a value of ``type`` into a document, ``read`` makes one of its JSON contract again.

    ``read`` raises RecordingError where the JSON is not what the schema says.
    """

    id: str
    type: type
    schema: str
    describe: Callable[[Any, Surface], Document]
    read: Callable[[Mapping[str, Any]], Any]
