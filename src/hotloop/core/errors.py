"""The errors that hotloop raises on purpose.

HotloopError                 the CLI catches this root, prints one line and exits with 2
├── UsageError               the command line or a setting makes no sense
├── CommandNotStarted        the training command was not found (127) or may not be executed (126)
├── RecordingError           a recording is missing, foreign, too new or unreadable
│   └── TraceError           so is a trace that another profiler wrote
└── InvariantError           one of our own laws is broken (a bug; the text says which law)
"""

from __future__ import annotations

from collections.abc import Iterable


class HotloopError(Exception):
    """Root of the tree. The text says what happened, with the value, and what to do next."""


class UsageError(HotloopError):
    """The command line or a setting makes no sense."""


class CommandNotStarted(HotloopError):
    """The training command could not be started.

    ``exit_code`` is 127 when it was not found and 126 when it may not be executed, as in a shell.
    """

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class RecordingError(HotloopError):
    """A recording is missing, foreign, from a newer hotloop, or unreadable."""


class TraceError(RecordingError):
    """A file is not a trace, or a trace that cannot be read."""


class InvariantError(HotloopError):
    """A law of the data is broken, such as parts that do not sum to their whole."""


def suggest_known(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word; empty if no words are known.

    >>> suggest_known("input-bond", ["input-bound", "straggler"]), suggest_known("xyz", ["input-bound", "straggler"])
    ("; did you mean 'input-bound'?", '; known: input-bound, straggler')
    """
    import difflib

    names = list(known)
    close = difflib.get_close_matches(word, names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names)}" if names else ""
