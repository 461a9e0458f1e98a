"""Reports built by hand: what the renderers' tests draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hotloop.change.apply import ACTS
from hotloop.core.acts import fill_fixes
from hotloop.core.findings import Basis, Finding, Fix, Kind, Numerics, Safety, Saving, Skipped, Where
from hotloop.core.phases import PHASES, Breakdown, Excluded, PhaseStats
from hotloop.core.report import (
    CombinedSaving,
    Device,
    DevicePart,
    DevicePhase,
    Health,
    LineShare,
    MemorySummary,
    Outcome,
    Overhead,
    RankSummary,
    Report,
    ScorecardRow,
    StepSummary,
    Timeline,
)

NO_TIMELINE = "no device timeline was recorded"
MANUAL = """## What it does
Tells that the step waits for `next(loader)`.

## Why it costs
The model computes nothing while it waits:

```
for batch in loader:   # <- here
```

## How to recognize it
- input_wait is large
- workers are few

## What to do
Read the data in `num_workers` processes. Then look at the data set's own code.

## When it is wrong
When the loader waits for a <network> disk.
"""


def make_breakdown(shares: Mapping[str, float], step_ns: int, steps: int = 110) -> Breakdown:
    """A breakdown with the given shares; phases that are not named get nothing."""

    def stats(share: float) -> PhaseStats:
        mean_ns = round(share * step_ns)
        return PhaseStats(
            total_ns=mean_ns * steps,
            share_ratio=share,
            mean_ns=mean_ns,
            std_ns=mean_ns // 20,
            min_ns=mean_ns * 9 // 10,
            median_ns=mean_ns,
            p95_ns=mean_ns * 11 // 10,
            p99_ns=mean_ns * 12 // 10,
            max_ns=mean_ns * 13 // 10,
        )

    return Breakdown({phase: stats(shares.get(phase, 0.0)) for phase in PHASES})


def make_timeline(rank: int, breakdown: Breakdown, buckets: int, spike_every: int = 0) -> Timeline:
    """Buckets of two steps with a repeating wobble, and a slow checkpoint now and then."""
    wobble = (0, 4, -3, 7, -6, 2, 9, -2)
    columns = {
        phase: tuple(breakdown.mean_ns(phase) * (100 + wobble[(i + k) % len(wobble)]) // 100 for i in range(buckets))
        for k, phase in enumerate(PHASES)
    }
    if spike_every:
        columns["checkpoint"] = tuple(900_000_000 if i % spike_every == spike_every - 1 else 0 for i in range(buckets))
    return Timeline(rank=rank, first_step=tuple(range(0, 2 * buckets, 2)), phase_ns=columns)


def make_memory(peak_bytes: int) -> MemorySummary:
    return MemorySummary(
        peak_bytes=peak_bytes,
        allocated_bytes=None,
        reserved_bytes=None,
        total_bytes=24 * 2**30,
        peak_ratio=peak_bytes / (24 * 2**30),
        growth_bytes_per_step=0.0,
    )


def make_rank(rank: int, breakdown: Breakdown, step_ns: int, world_size: int = 1, host: str = "node-a") -> RankSummary:
    return RankSummary(
        rank=rank,
        local_rank=rank,
        host=host,
        pid=4000 + rank,
        restart=0,
        world_size=world_size,
        anchor="AdamW",
        steps=120,
        skipped_steps=0,
        ended="completed",
        mean_ns=step_ns,
        median_ns=step_ns * 99 // 100,
        breakdown=breakdown,
        device=None,
        memory=make_memory(2 * 2**30),
        lost_rows=0,
    )


def make_step(step_ns: int) -> StepSummary:
    return StepSummary(
        count=120,
        steady_count=110,
        unit="sample",
        units_per_step=16.0,
        mean_ns=step_ns,
        median_ns=step_ns * 99 // 100,
        p95_ns=step_ns * 12 // 10,
        cv_ratio=0.03,
        tail_ns=5_000_000,
        time_to_first_step_ns=2_400_000_000,
        batches_per_s=1e9 / step_ns,
        samples_per_s=16e9 / step_ns,
        tokens_per_s=None,
    )


def partly_judged_report() -> Report:
    """The sample report of a process that lived 10 s: 1 before the run, 6 of warm-up, 2 steady and 1 of tail."""
    report = input_bound_report()
    assert report.step is not None
    left_out = Excluded(
        count=30,
        total_ns=7_000_000_000,
        ratio=7 / 9,
        warmup_count=30,
        warmup_ns=6_000_000_000,
        later_count=0,
        later_ns=0,
        tail_ns=1_000_000_000,
        startup_ns=1_000_000_000,
        phase_ns={"input_wait": 5_000_000_000, "forward": 1_000_000_000},
        compile_ns=0,
    )
    return replace(report, step=replace(report.step, excluded=left_out))


def make_scorecard(input_wait_ratio: float, verdict: str) -> tuple[ScorecardRow, ...]:
    return (
        ScorecardRow(
            name="waiting for data", measured_ratio=input_wait_ratio, good="< 10%", bad="> 30%", verdict=verdict
        ),
        ScorecardRow(name="optimizer", measured_ratio=0.06, good="5..10%", bad="> 20%", verdict="good"),
        ScorecardRow(name="device utilisation", measured_ratio=None, good="> 90%", bad="< 50%", verdict="unknown"),
    )


SKIPPED = (
    Skipped(rule="launch-bound", reason=NO_TIMELINE),
    Skipped(rule="pageable-transfer", reason=NO_TIMELINE),
    Skipped(rule="host-sync", reason=NO_TIMELINE),
    Skipped(rule="full-precision", reason="the probe was turned off with --no-probe"),
)

OVERHEAD = Overhead(
    hooks_ns=2_100_000,
    sampler_ns=300_000,
    deep_window_ns=None,
    share_ratio=0.0011,
    memory_bytes=11 * 2**20,
    method="hooks: calls counted times their cost measured in this process; sampler: its own thread's CPU time",
)


def filled(finding: Finding) -> Finding:
    """As the pipeline hands it on: with what its act says of the fix."""
    return fill_fixes([finding], ACTS)[0]


INPUT_BOUND = filled(
    Finding(
        rule="input-bound",
        kind=Kind.FAULT,
        title="Every step waits for the next batch: __getitem__ runs in the training process",
        phase="input_wait",
        cost_ns=92_000_000,
        cost_ratio=0.46,
        saving=Saving(low_ratio=0.35, mid_ratio=0.42, high_ratio=0.46, basis=Basis.SIMULATED),
        evidence={
            "num_workers": 0,
            "fetch_ns_per_batch": 88_100_000,
            "fetch_cpu_ns_per_batch": 87_000_000,
            "collate_ns_per_batch": 3_200_000,
            "cores_count": 8,
            "dataset": "TextWindows",
            "noise_ratio": 0.004,
            "start_method": "fork",
        },
        where=(
            Where(file="/home/ana/lm/train.py", line=42, function="main"),
            Where(file="/home/ana/lm/data.py", line=17, function="__getitem__"),
        ),
        fix=Fix(
            technique="loader-workers",
            settings={"num_workers": 2, "persistent_workers": True},
            safety=Safety.ASK,
            numerics=Numerics.RESAMPLED,
        ),
        unit="sample",
        next="hotloop rule input-bound",
    )
)

LOGGING = Finding(
    rule="logging-overhead",
    kind=Kind.FAULT,
    title="Every step prints and flushes",
    phase="other",
    cost_ns=6_200_000,
    cost_ratio=0.031,
    saving=Saving(low_ratio=0.018, mid_ratio=0.024, high_ratio=0.03, basis=Basis.MEASURED),
    evidence={"after_backward_ns": 6_200_000, "samples_count": 214},
    where=(Where(file="/home/ana/lm/train.py", line=61, function="main"),),
    fix=Fix(technique="log-less", settings={"every": 50}, safety=Safety.SHOW, numerics=Numerics.EXACT),
    unit="sample",
    next="hotloop rule logging-overhead",
)


def input_bound_report() -> Report:
    step_ns = 200_000_000
    breakdown = make_breakdown(
        {"input_wait": 0.46, "forward": 0.18, "backward": 0.25, "optimizer": 0.06, "other": 0.05}, step_ns
    )
    return Report(
        tool_version="0.1.0",
        command=("python", "train.py", "--epochs", "2"),
        environment={"torch": "2.13.0", "python": "3.11.7", "OMP_NUM_THREADS": "8", "cuda": None},
        outcome=Outcome(ended="completed", exit_code=0, signal=None, training_seen=True),
        verdict="input-bound: 46% of every step waits for the next batch",
        step=make_step(step_ns),
        breakdown=breakdown,
        device=None,
        memory=make_memory(2 * 2**30),
        ranks=(make_rank(0, breakdown, step_ns),),
        findings=(INPUT_BOUND, LOGGING),
        combined_saving=CombinedSaving(
            techniques=("loader-workers", "log-less"), low_ratio=0.36, mid_ratio=0.44, high_ratio=0.48
        ),
        forecast_history={"n": 12, "median_abs_error": 0.03},
        skipped=SKIPPED,
        health=(Health(level="warning", message="the clock jumped once at step 80; 1 step was left out"),),
        overhead=OVERHEAD,
        next_command="hotloop rule input-bound",
        timelines=(make_timeline(0, breakdown, 60, spike_every=20),),
        lines=(
            LineShare(
                phase="input_wait",
                file="/home/ana/lm/data.py",
                line=17,
                function="__getitem__",
                share_ratio=0.71,
                samples=640,
            ),
            LineShare(
                phase="input_wait",
                file="/home/ana/lm/data.py",
                line=22,
                function="__getitem__",
                share_ratio=0.2,
                samples=180,
            ),
            LineShare(
                phase="input_wait", file="/home/ana/lm/data.py", line=31, function="pad", share_ratio=0.05, samples=45
            ),
            LineShare(
                phase="input_wait", file="/home/ana/lm/data.py", line=33, function="pad", share_ratio=0.01, samples=9
            ),
            LineShare(
                phase="forward", file="/home/ana/lm/train.py", line=55, function="main", share_ratio=0.98, samples=350
            ),
        ),
        scorecard=make_scorecard(0.46, "bad"),
        run_folder=".hotloop/2026-11-21-1",
    )


def straggler_report() -> Report:
    step_ns = 300_000_000
    fast = make_breakdown(
        {"input_wait": 0.02, "forward": 0.2, "backward": 0.6, "optimizer": 0.08, "communication": 0.05, "other": 0.05},
        step_ns,
    )
    slow = make_breakdown(
        {"input_wait": 0.32, "forward": 0.2, "backward": 0.3, "optimizer": 0.08, "communication": 0.05, "other": 0.05},
        step_ns,
    )
    both = make_breakdown(
        {"input_wait": 0.17, "forward": 0.2, "backward": 0.45, "optimizer": 0.08, "communication": 0.05, "other": 0.05},
        step_ns,
    )
    straggler = Finding(
        rule="straggler",
        kind=Kind.FAULT,
        title="Rank 0 waits for rank 1 in every all-reduce",
        phase="backward",
        cost_ns=90_000_000,
        cost_ratio=0.3,
        saving=Saving(low_ratio=0.16, mid_ratio=0.22, high_ratio=0.3, basis=Basis.RULE_OF_THUMB),
        evidence={
            "exposed_comm_ns": [96_000_000, 6_000_000],
            "input_wait_ns": {"rank 0": 6_000_000, "rank 1": 96_000_000},
        },
        where=(Where(file="train.py", line=88, function="train"),),
        ranks=(1,),
        unit="token",
        next="hotloop rule straggler",
    )
    return replace(
        input_bound_report(),
        command=("torchrun", "--nproc-per-node", "2", "train.py"),
        outcome=Outcome(ended="signal", exit_code=None, signal="SIGTERM", training_seen=True),
        verdict="straggler: rank 0 waits for rank 1, 30% of every step",
        step=make_step(step_ns),
        breakdown=both,
        device_phases=(
            DevicePhase(phase="forward", device_mean_ns=48_000_000, host_mean_ns=9_000_000, steps_count=104),
            DevicePhase(phase="backward", device_mean_ns=121_000_000, host_mean_ns=14_200_000, steps_count=104),
        ),
        device=Device(
            compute=DevicePart(total_ns=12_000_000_000, share_ratio=0.55),
            exposed_comm=DevicePart(total_ns=6_500_000_000, share_ratio=0.3),
            exposed_mem=DevicePart(total_ns=0, share_ratio=0.0),
            idle=DevicePart(total_ns=3_200_000_000, share_ratio=0.15),
            busy_ratio=0.85,
        ),
        ranks=(
            make_rank(0, fast, step_ns, 2),
            replace(make_rank(1, slow, step_ns, 2, host="node-b"), ended="signal", lost_rows=3),
        ),
        findings=(straggler,),
        combined_saving=None,
        forecast_history={"n": 0, "median_abs_error": None},
        health=(),
        next_command="hotloop rule straggler",
        timelines=(make_timeline(0, fast, 60), make_timeline(1, slow, 60)),
        lines=(),
        scorecard=make_scorecard(0.17, "fair"),
    )


def healthy_report() -> Report:
    step_ns = 840_000
    breakdown = make_breakdown(
        {"input_wait": 0.004, "forward": 0.33, "backward": 0.5, "optimizer": 0.12, "other": 0.046}, step_ns
    )
    batch = filled(
        Finding(
            rule="small-batch",
            kind=Kind.OPPORTUNITY,
            title="A batch of 64 could cost less per sample than one of 16",
            phase=None,
            cost_ns=210_000,
            cost_ratio=0.25,
            saving=Saving(low_ratio=0.08, mid_ratio=0.15, high_ratio=0.21, basis=Basis.MEASURED),
            evidence={"probe_step_ns": {"16": 700_000, "64": 1_900_000}, "batch_size": 16},
            where=(Where(file="train.py", line=12, function="<module>"),),
            fix=Fix(
                technique="batch-size", settings={"batch_size": 64}, safety=Safety.ASK, numerics=Numerics.RESAMPLED
            ),
            unit="sample",
            next="hotloop rule small-batch",
        )
    )
    precision = Finding(
        rule="full-precision",
        kind=Kind.OPPORTUNITY,
        title="bf16 autocast wins nothing here",
        phase=None,
        cost_ns=None,
        cost_ratio=None,
        saving=None,
        evidence={"probe_float_ns": 14_000_000, "probe_bf16_ns": 20_000_000, "tested": True, "device": None},
        unit="sample",
    )
    return replace(
        input_bound_report(),
        verdict="healthy: no fault costs 5% or more of a step",
        step=replace(make_step(step_ns), cv_ratio=None, time_to_first_step_ns=None),
        breakdown=breakdown,
        memory=None,
        ranks=(make_rank(0, breakdown, step_ns),),
        findings=(batch, precision),
        combined_saving=None,
        forecast_history={"n": 0, "median_abs_error": None},
        health=(),
        overhead=replace(OVERHEAD, share_ratio=None, hooks_ns=None, sampler_ns=None, memory_bytes=None),
        next_command="hotloop rule small-batch",
        timelines=(make_timeline(0, breakdown, 60),),
        lines=(),
        scorecard=make_scorecard(0.004, "good"),
    )


def no_training_report() -> Report:
    return Report(
        tool_version="0.1.0",
        command=("python", "prepare.py"),
        environment={},
        outcome=Outcome(ended="completed", exit_code=3, signal=None, training_seen=False),
        verdict="no training was seen: `python prepare.py` made no backward and no optimizer step",
        step=None,
        breakdown=None,
        device=None,
        memory=None,
        ranks=(),
        findings=(),
        combined_saving=None,
        forecast_history={"n": 0, "median_abs_error": None},
        skipped=(),
        health=(),
        overhead=None,
        next_command=None,
    )


INJECTION = "</script><script>alert(1)</script>"


def hostile_report() -> Report:
    """A report whose every string tries to break out of where it is put."""
    report = straggler_report()
    evil = f"{INJECTION}<img src=x onerror=alert(2)>\x1b[31m[red]{{{{7*7}}}}\u202e'\"&"
    finding = replace(
        report.findings[0],
        title=evil,
        rule=evil,
        evidence={evil: evil, "list": [evil, {evil: evil}]},
        where=(Where(file=evil, line=1, function=evil),),
        fix=Fix(technique=evil, settings={evil: evil}, safety=Safety.ASK, numerics=Numerics.EXACT),
        unit=evil,
        next=evil,
    )
    return replace(
        report,
        tool_version=evil,
        command=("python", evil, "na\udcffme"),
        environment={evil: evil},
        verdict=evil,
        outcome=Outcome(ended=evil, exit_code=0, signal=evil, training_seen=True),
        ranks=tuple(replace(r, host=evil, anchor=evil, ended=evil) for r in report.ranks),
        findings=(finding,),
        combined_saving=CombinedSaving(techniques=(evil, evil), low_ratio=0.1, mid_ratio=0.2, high_ratio=0.3),
        skipped=(Skipped(rule=evil, reason=evil),),
        health=(Health(level=evil, message=evil),),
        overhead=replace(OVERHEAD, method=evil),
        next_command=evil,
        lines=(LineShare(phase="backward", file=evil, line=1, function=evil, share_ratio=0.5, samples=1),),
        scorecard=(ScorecardRow(name=evil, measured_ratio=0.5, good=evil, bad=evil, verdict=evil),),
        runs=(replace(report, verdict=evil),),
        run_folder=evil,
    )
