"""Strategy -> the variables that its techniques set before the training starts, and what to say about each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.change.apply import TECHNIQUES
from hotloop.change.apply.applier import describe_effect
from hotloop.change.apply.strategy_check import settings_of
from hotloop.core.strategy import Strategy


def set_variables(strategy: Strategy, environment: Mapping[str, str]) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The environment with the techniques' variables, and one fact for each technique that looked at it.

    What is set already stays as it is: the techniques see it and say so.
    """
    changed = dict(environment)
    facts = []
    for choice in strategy.choices:
        technique = TECHNIQUES[choice.technique]
        settings = settings_of(technique, choice)
        variables, effect = technique.set_environment(settings, changed)
        changed.update(variables)
        if effect is not None:
            facts.append(describe_effect(technique, settings, effect, "the environment").as_fact())
    return changed, facts
