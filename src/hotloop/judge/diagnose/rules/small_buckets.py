"""Analysis -> small-buckets: gradients are sent in so many small pieces that latency costs more than bytes."""

from __future__ import annotations

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Basis, Finding, Fix, Saving, Skipped, saving_within
from hotloop.core.rules import rule
from hotloop.judge.diagnose.comm import (
    bucket_bytes,
    bucket_cap_mib,
    crossed_link,
    exposure_by_cause,
    is_distributed,
    needless_buckets,
)
from hotloop.judge.diagnose.measured import MATERIAL_RATIO, known_places


@rule("small-buckets", "gradients are sent in many small buckets", ablation="skip-exchange")
def judge_small_buckets(analysis: Analysis) -> Finding | Skipped | None:
    """
    ## What it does
    Finds DistributedDataParallel runs whose gradient buckets are far smaller than a mebibyte.

    ## Why it costs
    Every all-reduce costs its latency, whatever its size: tens of microseconds with NCCL on one host, a fraction of a
    millisecond with gloo or over a network.

    ## How to recognize it
    There are many buckets, nearly all of them smaller than 1 MiB, and some communication does not overlap with
    backward. If a probe with this model's buckets ran, it measured the saving. Otherwise, the cost is the number of
    unneeded all-reduces times their usual latency, but never more than the exposed communication.

    ## What to do
    Leave `bucket_cap_mb` at 25, or raise it. If gradients cross a network, the finding names the bucket size that
    leaves the least communication exposed at the rate seen on that network: 25 is only the initial value, and large
    models on fast links need 50 to 200. A model with one huge last layer may need smaller buckets.

    ## When it is wrong
    Small buckets start earlier: if all communication already overlaps with backward, larger buckets save nothing.
    """
    rank = analysis.lead
    ddp = rank.ddp
    if not is_distributed(analysis) or ddp is None:
        return None
    sizes = bucket_bytes(ddp)
    if not sizes:
        return Skipped(reason="the sizes of DDP's buckets are unknown")
    needless = needless_buckets(ddp)
    if needless == 0:
        return None
    forecast = rank.forecasts.get("ddp-buckets")
    exposure = exposure_by_cause(analysis)
    saving: Saving
    if forecast is not None:
        cost_ratio = max(forecast.saving_high_ratio, forecast.saving_mid_ratio)
        saving = saving_within(
            cost_ratio,
            forecast.saving_low_ratio,
            forecast.saving_mid_ratio,
            forecast.saving_high_ratio,
            forecast.basis,
        )
    elif exposure is not None:
        cost_ratio = min(1.0, exposure.buckets_ns / analysis.step_ns)
        saving = saving_within(cost_ratio, 0.4 * cost_ratio, cost_ratio, cost_ratio, Basis.RULE_OF_THUMB)
    else:
        return Skipped(reason="exposed communication is unknown")
    if saving.mid_ratio < MATERIAL_RATIO:
        return None
    return Finding(
        title=f"gradients are sent in {len(sizes)} buckets of about {sorted(sizes)[len(sizes) // 2] / 1024:.0f} KiB",
        phase="backward",
        cost_ns=round(cost_ratio * analysis.step_ns),
        time_ns={"backward": round(cost_ratio * analysis.step_ns)},
        cost_ratio=cost_ratio,
        saving=saving,
        evidence={
            "buckets": len(sizes),
            "median_bucket_bytes": sorted(sizes)[len(sizes) // 2],
            "needless_buckets": needless,
            "bucket_cap_bytes": ddp.bucket_cap_bytes,
            "parameter_bytes": ddp.parameter_bytes,
            **({"doubt": forecast.doubt} if forecast is not None and forecast.doubt else {}),
        },
        where=known_places(ddp.where),
        # The probe timed buckets of 25 MiB.
        fix=Fix(
            technique="ddp-buckets",
            settings={"bucket_cap_mb": 25 if forecast else bucket_cap_mib(analysis, crossed_link(analysis))},
        ),
    )
