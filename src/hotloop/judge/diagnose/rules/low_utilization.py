"""low-utilization: the run used less of the hardware than the user wants, or than tuning guides recommend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Finding, Severity, Skipped, Value
from hotloop.core.rules import rule
from hotloop.core.trace_analysis import TraceAnalysis
from hotloop.core.utilization import LOW_RATIO, TARGETS, TEXT, Utilization
from hotloop.judge.diagnose.measured import format_share
from hotloop.judge.diagnose.on_trace import device_ranks, window_ns

LEAST_CAUSE_RATIO = 0.02
"""A smaller part of the time is not named as a cause."""
BELOW_PEAK, UNTOLD = "computing below the peak rate", "a cause that was not recorded"
NOT_MEASURED = "it was not measured"
NARROW = "work that does not keep all cores busy"
OF_CORES = ("threads", "others")

CAUSES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "input_wait": ("waiting for input", ("input-bound", "preprocessing-in-loop", "worker-restart")),
    "h2d": ("copies that no computation hides", ("pageable-transfer",)),
    "communication": (
        "communication that no computation hides",
        ("exposed-communication", "straggler", "slow-link", "small-buckets", "sync-every-microstep"),
    ),
    "checkpoint": ("checkpoints", ("blocking-checkpoint",)),
    "host": (
        "the host outside of the model",
        ("logging-overhead", "preprocessing-in-loop", "python-gradient-loop", "gc-pause", "host-sync"),
    ),
    "sync": ("the host waiting for the device", ("host-sync", "logging-overhead")),
    "launch": ("launches that come late", ("launch-bound", "uncompiled-model")),
    "queue": ("waiting for another stream or rank", ("straggler", "exposed-communication")),
    "threads": ("fewer compute threads than cores", ()),
    "others": ("other programs on the same cores", ()),
    "peak": (
        BELOW_PEAK,
        ("small-batch", "full-precision", "uncompiled-model", "padding-waste", "redundant-compute", "slow-optimizer"),
    ),
}
"""Part of the time -> its name in reports, and the rules that own it."""
_OWNERS = dict(CAUSES.values())

HIDDEN_FROM = {
    "utilization_ratio": ("communication", *OF_CORES),
    "busy_ratio": ("communication", "h2d", *OF_CORES),
    "cpu_utilization_ratio": (),
}
"""Parts that do not lower a ratio: kernels of a collective are kernels, and a timeline counts copies as work too; the
number of compute threads matters only to the cores."""


LEFT = {"utilization_ratio": UNTOLD, "busy_ratio": UNTOLD, "cpu_utilization_ratio": NARROW}
"""The rest, after all recorded causes are taken off; for other ratios, computing below the peak."""


def list_waits(analysis: TraceAnalysis) -> dict[str, float]:
    """Shares of the judged windows in which the device did not compute, by part of CAUSES, over all ranks."""
    ranks = device_ranks(analysis)
    whole_ns = sum(map(window_ns, ranks))
    found: dict[str, float] = {}
    for rank in ranks:
        part, idle = rank.judged, rank.judged_idle
        assert part is not None
        assert idle is not None
        parts_ns = {
            "communication": part.exposed_comm_ns,
            "h2d": part.exposed_mem_ns,
            "input_wait": idle.late_data_wait_ns,
            "sync": idle.sync_drained_ns,
            "launch": idle.launch_late_ns - idle.late_data_wait_ns + idle.launch_latency_ns,
            "queue": idle.queue_dependent_ns,
        }
        for name, ns in parts_ns.items():
            found[name] = found.get(name, 0.0) + ns / whole_ns
    return found


def low_utilization_on_trace(analysis: TraceAnalysis) -> tuple[Finding | Skipped, ...]:
    """The same over the complete steps of a profiler's file, with the causes of the device's idle time."""
    return _judge(analysis.utilization, analysis.targets, list_waits(analysis))


def name_owners(finding: Finding, findings: Sequence[Finding]) -> Finding:
    """The finding, with the other findings that own each of its causes."""
    causes, present = finding.evidence["causes_ratio"], {one.rule for one in findings}
    assert isinstance(causes, dict)
    owners = {name: next((one for one in _OWNERS.get(name, ()) if one in present), None) for name in causes}
    named: dict[str, Value] = {name: owner for name, owner in owners.items() if owner is not None}
    return replace(finding, evidence={**finding.evidence, "see": named or None})


@rule(
    "low-utilization",
    "the run uses less of the hardware than you want",
    on_trace=low_utilization_on_trace,
    link=name_owners,
)
def low_utilization(analysis: Analysis) -> tuple[Finding | Skipped, ...]:
    """## What it does
    Compares GPU utilization, SM activity, MFU, HFU or CPU utilization with the targets of `--target`. Without a target,
    compares GPU utilization with 50 %, the threshold below which tuning guides call it low.

    ## Why it costs
    Low utilization costs nothing by itself: it shows how much there is to save. The listed causes name what the
    hardware waits for; the time itself counts in the findings listed with each cause.

    ## How to recognize it
    GPU utilization is the share of time in which a kernel ran, according to NVML or a kernel timeline. SM activity is
    reported by NVML or estimated from the number of blocks in each kernel. MFU is the rate of counted FLOPs divided by
    the device's dense peak rate for the dtype in use; on a CPU, it is divided by the rate of a matrix product that is
    measured after the run. The rule judges only quantities that were measured.

    ## What to do
    Fix the first cause that has a finding, then measure again. If the device is busy but MFU is low, look for small
    batches, float32 and unfused operators instead.

    ## When it is wrong
    High utilization does not prove good use: one small kernel at a time counts as 100 %. The share of each cause is an
    upper bound; it is based on host phases unless a kernel timeline was recorded. NVML also counts other programs on
    the GPU.
    """
    phases = _list_phases(analysis)
    of_cores = {name: phases[name] for name in OF_CORES if name in phases}
    return _judge(analysis.utilization, analysis.targets, {**(analysis.waits or phases), **of_cores})


def _list_phases(analysis: Analysis) -> dict[str, float]:
    """Shares of the step in which the host was not in the model, by part of CAUSES; for cores, the share without
    threads."""
    threads, cores = analysis.lead.torch_threads, analysis.lead.cores
    found = {name: analysis.share(name) for name in ("input_wait", "h2d", "communication", "checkpoint")}
    found["host"] = analysis.share("other")
    if threads and cores:
        found["threads"] = max(0.0, 1.0 - threads / cores)
    if analysis.utilization.cpu_others_ratio is not None:
        found["others"] = analysis.utilization.cpu_others_ratio
    return found


def _judge(
    used: Utilization, targets: Mapping[str, float], shares: Mapping[str, float]
) -> tuple[Finding | Skipped, ...]:
    answers: list[Finding | Skipped] = []
    for target, least_ratio in targets.items():
        value, field = used.reached(target), TARGETS[target]
        if value is None:
            answers.append(
                Skipped(reason=f"the target {target}={least_ratio:g}: {used.unknown.get(field, NOT_MEASURED)}")
            )
        elif value < least_ratio:
            wanted = f"below the target of {format_share(least_ratio)}"
            answers.append(_find(used, target, wanted, least_ratio, shares, Severity.MEDIUM))
    if "utilization" not in targets:
        ratio = used.device_ratio
        if ratio is None:
            answers.append(Skipped(reason=used.unknown.get("utilization_ratio", NOT_MEASURED)))
        elif ratio < LOW_RATIO:
            wanted = f"below {format_share(LOW_RATIO)}"
            answers.append(_find(used, "utilization", wanted, LOW_RATIO, shares, Severity.LOW))
    return tuple(answers)


def _find(
    used: Utilization, target: str, wanted: str, least_ratio: float, shares: Mapping[str, float], severity: Severity
) -> Finding:
    field = TARGETS[target]
    if target == "utilization" and used.utilization_ratio is None:
        field = "busy_ratio"
    value = used.reached(target) or 0.0
    causes = rank_causes(1.0 - value, field, shares)
    main = next(iter(causes.items()), None)
    why = "" if main is None else f"; the largest part of the rest is {main[0]} ({format_share(main[1])})"
    if main is not None and main[0] == UNTOLD:
        why = "; what the hardware waits for was not recorded (hotloop run --trace records it)"
    evidence: dict[str, Value] = {f"{target}_ratio": round(value, 4), "target_ratio": least_ratio}
    evidence["causes_ratio"] = dict(causes)
    if field in ("mfu_ratio", "hfu_ratio"):
        flops = used.flops_per_step if field == "mfu_ratio" else used.hardware_flops_per_step
        evidence |= {"counted_flops": flops, "peak_flops_per_s": used.peak_flops_per_s, "peak": used.peak}
    return Finding(
        title=f"{TEXT[field]} is {format_share(value)}, {wanted}{why}",
        evidence=evidence,
        severity_override=severity,
    )


def rank_causes(missing_ratio: float, field: str, shares: Mapping[str, float]) -> dict[str, float]:
    """The causes of the missing part of a ratio, largest first; each share is cut to what the ones before it leave.

    >>> rank_causes(0.5, "utilization_ratio", {"input_wait": 0.4, "h2d": 0.2, "communication": 0.3})
    {'waiting for input': 0.4, 'copies that no computation hides': 0.1}
    """
    left, causes = missing_ratio, dict[str, float]()
    hidden = HIDDEN_FROM.get(field, OF_CORES)
    for name, share in sorted(shares.items(), key=lambda item: -item[1]):
        part = 0.0 if name in hidden else min(share, left)
        if part >= LEAST_CAUSE_RATIO:
            causes[CAUSES[name][0]] = round(part, 4)
            left -= part
    if left >= LEAST_CAUSE_RATIO:
        causes[LEFT.get(field, BELOW_PEAK)] = round(left, 4)
    return dict(sorted(causes.items(), key=lambda item: -item[1]))
