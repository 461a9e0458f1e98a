"""A change of a forward -> the same change, given up for good at the first forward that fails under it.

A technique cannot know what a forward that it has never run does with another dtype or memory layout. The forward is
run again without the change, from the same random numbers, so that the training continues as it would have.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from hotloop.change.apply.forward import Around

LONGEST_REASON = 160


def on_trial(model: Any, around: Around, give_up: Callable[[str], None]) -> Around:
    """``around``, until a forward fails under it: ``give_up(why)`` takes it back then, and the forward is repeated."""
    proved = over = False

    def run(call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        nonlocal proved, over
        if torch.compiler.is_compiling():
            return around(call, args, kwargs)
        if over:
            return call(*args, **kwargs)
        restore = _nothing if proved else _state_of(model)
        try:
            result = around(call, args, kwargs)
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except (RuntimeError, TypeError) as error:
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"[:LONGEST_REASON]
        else:
            proved = True
            return result
        restore()
        over = True
        give_up(why)  # before the second try: the weights, too, have to be as they were
        return call(*args, **kwargs)  # raises as it would without us where it is the script's own fault

    return run


def _nothing() -> None:
    """Later forwards are repeated as they are: keeping the state of each would cost every step."""


def _state_of(model: Any) -> Callable[[], None]:
    """A function that puts the random numbers and the model's buffers back to their state now."""
    drawn = random.getstate()
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state()
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]

    def restore() -> None:
        random.setstate(drawn)
        torch.set_rng_state(states["cpu"])
        if "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"])
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)

    return restore
