"""An unknown word and the known ones -> the end of an error message: what was probably meant, else what there is."""

from __future__ import annotations

from collections.abc import Iterable


def suggest_known(word: str, known: Iterable[str]) -> str:
    """What follows an unknown word in a message; empty where nothing is known.

    >>> suggest_known("input-bond", ["input-bound", "straggler"]), suggest_known("xyz", ["input-bound", "straggler"])
    ("; did you mean 'input-bound'?", '; known: input-bound, straggler')
    """
    import difflib

    names = list(known)
    close = difflib.get_close_matches(word, names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names)}" if names else ""
