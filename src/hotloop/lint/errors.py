"""NotRead: why a file could not be judged."""

from __future__ import annotations

from hotloop.core.errors import HotloopError


class NotRead(HotloopError):
    """A file is not what its name says, or beyond what is read; the text is one line."""
