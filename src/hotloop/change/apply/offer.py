"""A strategy from outside -> the choices of it that only the training library can apply, for a Trainer to take over.

The attached agent offers them before the script runs; a Trainer that the script builds asks for them. They meet in this
process and nowhere else, and neither imports the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from hotloop.core.applied import AppliedTechnique
from hotloop.core.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The part of a command's strategy that cannot be applied to an unmodified script.

    ``emit`` reports what became of a choice; ``give_up`` informs the agent which techniques are no longer its own.
    """

    strategy: Strategy
    emit: Callable[[AppliedTechnique], None]
    give_up: Callable[[Collection[str]], None]


_offers: list[Offer] = []


def offer_choices(offer: Offer) -> None:
    """Leave an offer for this process; a later one takes its place."""
    _offers[:] = [offer]


def offered_choices() -> Offer | None:
    """The offer of this process; None where the command was started without one."""
    return _offers[-1] if _offers else None
