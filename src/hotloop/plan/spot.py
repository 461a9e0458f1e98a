"""The same training on devices that are cheaper and may be taken away: hours, money, and where it begins to pay."""

from __future__ import annotations

from math import sqrt

from hotloop.core.errors import UsageError
from hotloop.core.hardware import Hardware, Price
from hotloop.core.prediction import SpotPrediction, StepPrediction
from hotloop.core.workload import Workload

from .cost import ASSUMED_CHECKPOINT_S, Failures, least_waste_ratio, pick_price, predict_checkpoint, predict_cost

SEARCHED_GPU_HOURS = (1e-3, 1e9)
"""Between two preemptions of one device: where the break-even is searched."""
SEARCH_ERROR = 1.0001


def spot_break_even(on_demand: Failures, spot: Failures, gpus: int, checkpoint_s: float) -> float:
    """Spot is cheaper where its price is below this share of the on-demand price: the shares of time that train.

    >>> always = Failures(gpu_hours_per_failure=1e12, restart_s=0)
    >>> often = Failures(gpu_hours_per_failure=8 * 10_000 / 3600, restart_s=100)
    >>> round(spot_break_even(always, often, 8, 50), 3)
    0.894
    """
    spot_waste, waste = (least_waste_ratio(checkpoint_s, one.mtbf_s(gpus), one.restart_s) for one in (spot, on_demand))
    return (1 - spot_waste) / (1 - waste) if waste < 1 else float("inf")


def predict_spot(
    step: StepPrediction, workload: Workload, hardware: Hardware, tokens: int, failures: Failures
) -> SpotPrediction:
    """At the known prices, the cheapest of each kind. What depends on an unknown price or rate is None."""
    spot, on_demand = pick_price(hardware, "spot"), pick_price(hardware, "on-demand")
    stall_s = predict_checkpoint(workload, hardware, failures).stall_s
    checkpoint_s = ASSUMED_CHECKPOINT_S if stall_s is None else stall_s
    price_ratio = None
    if spot is not None and on_demand is not None and on_demand.usd_per_hour:
        price_ratio = spot.usd_per_hour / on_demand.usd_per_hour
    has_rate = failures.gpu_hours_per_preemption is not None
    break_even = cost = None
    if has_rate:
        break_even = spot_break_even(failures, failures.on_spot(), workload.gpus, checkpoint_s)
        try:
            cost = predict_cost(step, workload, hardware, tokens, failures=failures.on_spot(), price=spot)
        except UsageError:
            break_even = 0.0  # it never ends
    return SpotPrediction(
        gpu_hours_per_preemption=failures.gpu_hours_per_preemption,
        price=_draw_price(spot),
        on_demand_price=_draw_price(on_demand),
        price_ratio=price_ratio,
        hours=None if cost is None else cost.hours,
        usd=None if cost is None else cost.usd,
        waste_ratio=None if cost is None else cost.waste_ratio,
        interval_s=None if cost is None else cost.interval_s,
        break_even_ratio=break_even,
        break_even_usd_per_hour=None
        if break_even is None or on_demand is None
        else break_even * on_demand.usd_per_hour,
        break_even_gpu_hours=None
        if price_ratio is None
        else _least_gpu_hours(failures, workload.gpus, checkpoint_s, price_ratio),
    )


def _draw_price(price: Price | None) -> str:
    return "unknown" if price is None else f"{price.usd_per_hour:g} USD an hour, {price.provider}, {price.day}"


def _least_gpu_hours(failures: Failures, gpus: int, checkpoint_s: float, price_ratio: float) -> float | None:
    """Device hours between two preemptions from which spot is cheaper at these prices; None where it never is."""
    low, high = SEARCHED_GPU_HOURS

    def pays(gpu_hours: float) -> bool:
        rare = Failures(
            gpu_hours_per_failure=failures.gpu_hours_per_failure,
            gpu_hours_per_preemption=gpu_hours,
            restart_s=failures.restart_s,
        )
        return spot_break_even(failures, rare.on_spot(), gpus, checkpoint_s) > price_ratio

    if not pays(high):
        return None
    while high / low > SEARCH_ERROR:
        middle = sqrt(low * high)
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high
