"""Requests of ``hotloop attach`` to a running training, served at a step's end: a trace, operators, silence.

Loaded by the first request; a run that gets no request never imports it.
"""

from __future__ import annotations

import os

from hotloop.core.events import WANTS_DEEP, WANTS_OFF, WANTS_ON, WANTS_TRACE
from hotloop.core.trace_plan import TracePlan

from .agent import Agent
from .local import Session

FOREVER = 1 << 62
"""Steps that are only counted, until the next request."""


def fulfill(agent: Agent, word: int) -> None:
    """``word``: REQUEST_AT of core/events.py."""
    if word & WANTS_ON and agent.muted:
        agent.muted = False
        agent.wake()
        _say(agent, "records again, as requested by hotloop attach --on")
    if word & WANTS_OFF and not agent.muted:
        if len(agent.optimizers) > 1 or agent.session is not None:
            _say(agent, "hotloop attach --off was refused: several optimizers, or a trace, need exact steps")
            return
        _say(agent, "steps are only counted from here on, as requested by hotloop attach --off")
        agent.muted = agent.resting = True
        agent.rest_from = agent.rest_left = FOREVER
    if not word & (WANTS_TRACE | WANTS_DEEP):
        return
    agent.rests_for = 0  # every step is wanted while something is recorded
    if agent.session is None:
        Session(agent).ends_when_idle = True
    session: Session = agent.session
    if word & WANTS_TRACE:
        from .tracing import Tracing

        over = agent.steps // max(1, len(agent.optimizers)) + 1  # the step that ends now is not counted yet
        plan = TracePlan(warmup=1, active=max(1, word >> 8 & 0xFFFF), skip_first=over + 1)
        folder = os.path.join(agent.options["run"], "traces")
        session.subscribe(Tracing(plan, folder, None, over))
    if word & WANTS_DEEP:
        from .deep import DeepWindow

        session.options = {**session.options, "deep": True}
        session.subscribe(DeepWindow())


def _say(agent: Agent, message: str) -> None:
    agent.tell({"kind": "health", "level": "info", "message": message})
