"""A workload file's request -> its PlanReport: the models that predict time and cost are handed in here."""

from __future__ import annotations

from hotloop import __version__
from hotloop.core.planning import PlanReport
from hotloop.plan.planner import build_plan
from hotloop.plan.workload_file import PlanRequest


def make_plan(request: PlanRequest, *, wants_remedies: bool = False) -> PlanReport:
    """The plan. Its time and cost stay unknown until predict_step and predict_cost are given to ``build_plan``."""
    return build_plan(request, __version__, wants_remedies=wants_remedies)
