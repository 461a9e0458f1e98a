"""debug-settings: torch's debugging settings are on during training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Basis, Finding, Fix, saving_within
from hotloop.core.rules import rule
from hotloop.judge.diagnose.measured import format_share


@dataclass(frozen=True, slots=True)
class _Setting:
    title: str
    phases: tuple[str, ...]
    """The phases that the setting slows down."""
    parts: tuple[float, float, float]
    """Rule of thumb: low, middle and high part of these phases that the setting takes."""
    needs_accelerator: bool = False


COMPUTING = ("forward", "backward")
SETTINGS = {
    # Reported slowdowns of forward and backward: 1.5 to 3 times, and 4 times or more with many small operators. Two
    # code bases of 2026-11-27 saved 0.28 and 0.40 of the step.
    "anomaly-detection": _Setting(
        "anomaly detection is on (torch.autograd.set_detect_anomaly): each operator records its Python stack, and "
        "backward looks for NaN",
        COMPUTING,
        (0.15, 0.4, 0.8),
    ),
    "synchronous-launches": _Setting(
        "CUDA_LAUNCH_BLOCKING is set: the host waits for every kernel", COMPUTING, (0.05, 0.3, 0.7), True
    ),
    "deterministic-algorithms": _Setting(
        "deterministic algorithms are on: some kernels are slower, and new memory is filled",
        COMPUTING,
        (0.0, 0.05, 0.3),
        True,
    ),
    "distributed-debug": _Setting(
        "TORCH_DISTRIBUTED_DEBUG is DETAIL: every collective is first checked on all ranks",
        ("backward", "communication"),
        (0.0, 0.15, 0.6),
    ),
}


@rule("debug-settings", "torch's debugging settings are on during training")
def debug_settings(analysis: Analysis) -> Sequence[Finding]:
    """## What it does
    At the first backward, reads torch's own state and environment variables: anomaly detection, synchronous launches,
    deterministic algorithms and the process group's debug level.

    ## Why it costs
    Each setting adds work to every operator, kernel or collective. People turn them on to find a bug, and then forget
    them: nothing in the output says that they are still on.

    ## How to recognize it
    The setting was on at the first backward. Its cost is a rule of thumb from public reports: a share of the time in
    the phases that the setting slows down. The share depends on how small the operators are.

    ## What to do
    Turn the setting off, and measure again.

    ## When it is wrong
    Some training runs need deterministic results. With few large operators, anomaly detection costs little.
    """
    lead = analysis.lead
    found = []
    for name in lead.settings:
        setting = SETTINGS.get(name)
        if setting is None or (setting.needs_accelerator and not analysis.accelerator):
            continue
        if name == "distributed-debug" and lead.world_size < 2:
            continue
        phases_ratio = sum(lead.breakdown.share(phase) for phase in setting.phases)
        low, mid, high = (part * phases_ratio for part in setting.parts)
        found.append(
            Finding(
                title=f"{setting.title}; it slows down {format_share(phases_ratio)} of every step",
                cost_ratio=high,
                saving=saving_within(high, low, mid, high, Basis.RULE_OF_THUMB),
                evidence={"setting": name, "phases_ratio": round(phases_ratio, 4)},
                where=(lead.settings_where[name],) if name in lead.settings_where else (),
                fix=Fix(technique="turn-off-debugging"),
            )
        )
    return tuple(found)
