"""What the parts of `hotloop bench` share."""

from __future__ import annotations

from hotloop.core.errors import UsageError

SLACK_S = 300.0
"""What importing and building the user's objects may take beside the measuring."""

MOST_COUNT = 4096
"""Of ranks, workers, or Mi elements: more is a typing error."""


def parse_integers(option: str, text: str, least: int) -> list[int]:
    """Whole numbers separated by commas, each once. Raises UsageError."""

    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and least <= int(word) <= MOST_COUNT for word in words):
        raise UsageError(
            f"{option} {text}: give numbers from {least} to {MOST_COUNT} separated by commas, such as 1,2,4"
        )
    return list(dict.fromkeys(int(word) for word in words))
