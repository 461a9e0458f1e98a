"""Strategy -> the variables that its techniques set before the training starts, and what is to be said of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.apply import TECHNIQUES
from hotloop.apply.strategy_check import settings_of
from hotloop.core.applied import APPLIED, NOT_APPLICABLE, AppliedTechnique
from hotloop.core.strategy import Strategy
from hotloop.core.techniques import Applied


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
        if effect is None:
            continue
        applied = isinstance(effect, Applied)
        record = AppliedTechnique(
            technique=technique.id,
            settings=settings,
            status=APPLIED if applied else NOT_APPLICABLE,
            detail=effect.detail if isinstance(effect, Applied) else effect.why,
            target="the environment",
            where=None,
            numerics=technique.numerics.value if applied else None,
            values=dict(effect.values) if isinstance(effect, Applied) else {},
        )
        facts.append(record.as_fact())
    return changed, facts
