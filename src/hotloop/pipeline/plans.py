"""A workload file's request -> its PlanReport: the models that predict time and cost are handed in here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hotloop import __version__
from hotloop.core.planning import PlanReport
from hotloop.core.prediction import CostPrediction, StepPrediction
from hotloop.plan.cost import pick_price, predict_cost
from hotloop.plan.options import build_scaling, build_search
from hotloop.plan.planner import build_plan
from hotloop.plan.time import predict_step
from hotloop.plan.workload_file import PlanRequest

USUAL_TOKENS = 10**9
"""Whose cost is stated where nobody says how many tokens the training has."""


def make_plan(
    request: PlanRequest,
    *,
    wants_remedies: bool = False,
    tokens: int | None = None,
    scaling: str | None = None,
    goal: str | None = None,
    gpu_counts: Sequence[int] | None = None,
    gpus: Sequence[str] = (),
    hours: float | None = None,
) -> PlanReport:
    """The plan, with time and cost of a training on ``tokens``.

    ``scaling``: weak or strong. ``goal``: time, cost or memory, searched over ``gpu_counts`` of the request's device or
    of the devices named in ``gpus``, to end within ``hours``.
    """
    total = USUAL_TOKENS if tokens is None else tokens

    def price(step: StepPrediction, asked: PlanRequest) -> CostPrediction:
        paid = pick_price(asked.hardware, asked.price_kind)
        return predict_cost(step, asked.workload, asked.hardware, total, price=paid)

    report = build_plan(
        request, __version__, predict_step=predict_step, predict_cost=price, wants_remedies=wants_remedies
    )
    return replace(
        report,
        scaling=build_scaling(request, scaling, total) if scaling else (),
        search=build_search(request, goal, total, gpu_counts, gpus, hours) if goal else None,
    )
