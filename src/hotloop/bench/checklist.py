"""Checks of a machine and the Report of a run -> the checklist of tuning guides: ticked, unticked, unknown or not
applicable.

Every item says what its answer rests on. What a rule judged is taken from the report; nothing is judged anew, and what
was not recorded is unknown. Adding an item is adding one entry to ITEMS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hotloop.core.doctor import ChecklistItem, MachineCheck, Stage, Tick
from hotloop.core.findings import Finding, Kind, Severity
from hotloop.core.report import Report
from hotloop.core.utilization import GOOD_RATIO, TEXT

from .host import format_bytes, plural

STAGES: tuple[Stage, ...] = ("before", "during", "after")
NO_RUN = "no run was given"
NO_STEPS = "the run recorded no training"
ONE_RANK = "one rank: there is no communication"
FULL_RATIO = 0.9
"""Of the memory, as for the rule memory-pressure."""
FEW_STEPS = 10
LIKELY_RATIO = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What the items look at: the machine's checks by id, and the run's report when there is one."""

    checks: Mapping[str, MachineCheck]
    report: Report | None

    @property
    def steps(self) -> Report | None:
        """The report, when it holds steps."""
        return self.report if self.report is not None and self.report.step is not None else None

    @property
    def accelerated(self) -> bool | None:
        """The run used an accelerator; without a run, whether the machine has one. None when unknown."""
        if self.report is not None and "accelerator" in self.report.environment:
            return self.report.environment["accelerator"] is not None
        check = self.checks.get("accelerator")
        return None if check is None or check.status == "unknown" else check.values.get("kind") is not None


Answer = tuple[Tick, str]
"""The tick and its evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecklistEntry:
    """One line of the checklist and how it is answered."""

    id: str
    stage: Stage
    title: str
    ask: Callable[[Scene], Answer]


def fill_checklist(checks: Sequence[MachineCheck], report: Report | None) -> tuple[ChecklistItem, ...]:
    """Every entry of ITEMS, answered, in its order."""
    scene = Scene(checks={check.id: check for check in checks}, report=report)
    items = []
    for entry in ITEMS:
        tick, evidence = entry.ask(scene)
        items.append(ChecklistItem(id=entry.id, stage=entry.stage, title=entry.title, tick=tick, evidence=evidence))
    return tuple(items)


# How items are answered.


def by_check(*ids: str) -> Callable[[Scene], Answer]:
    """Ticked when all of these machine checks are good; a missing one does not apply."""

    def ask(scene: Scene) -> Answer:
        found = [scene.checks[i] for i in ids if i in scene.checks]
        bad = [c for c in found if c.status in ("harmful", "warning")]
        if bad:
            return "unticked", "; ".join(f"{c.title}: {c.measured}" for c in bad[:2])
        known = [c for c in found if c.status == "good"]
        if not known:
            return "unknown", "; ".join(c.why for c in found[:1]) or "not checked"
        if len(known) < len(found):
            missing = next(c for c in found if c.status == "unknown")
            return "unknown", f"{missing.title}: {missing.why}"
        return "ticked", "; ".join(f"{c.title}: {c.measured}" for c in known[:2])

    return ask


def ask_variables(scene: Scene) -> Answer:
    """Every variable that is worth a word has a check of its own."""
    bad = [c.title for i, c in scene.checks.items() if i.startswith("variable") and c.status in ("harmful", "warning")]
    return ("unticked", ", ".join(bad[:4])) if bad else by_check("variables")(scene)


def by_rule(*rules: str, good: str) -> Callable[[Scene], Answer]:
    """Unticked when one of the rules found something in the run, unknown when one could not judge, else ticked."""

    def ask(scene: Scene) -> Answer:
        report = scene.steps
        if report is None:
            return "unknown", NO_RUN if scene.report is None else NO_STEPS
        found = _found(report, *rules)
        if found is not None:
            return "unticked", f"{found.rule}: {found.title}"
        reason = _skipped(report, *rules)
        return ("unknown", reason) if reason is not None else ("ticked", f"{good} (rule {', '.join(rules)})")

    return ask


def by_share(phase: str, most_ratio: float, *rules: str) -> Callable[[Scene], Answer]:
    """Ticked when the phase takes at most ``most_ratio`` of the step and no rule found anything."""

    def ask(scene: Scene) -> Answer:
        report = scene.steps
        if report is None or report.breakdown is None:
            return "unknown", NO_RUN if scene.report is None else NO_STEPS
        found = _found(report, *rules)
        if found is not None:
            return "unticked", f"{found.rule}: {found.title}"
        share, name = report.breakdown.share(phase), phase.replace("_", " ")
        if share == 0.0:
            return "ticked", f"the steady steps contain no {name}"
        text = f"{name} takes {share * 100:.1f}% of the step; guides recommend at most {most_ratio * 100:.0f}%"
        return ("ticked" if share <= most_ratio else "unticked"), text

    return ask


def _found(report: Report, *rules: str) -> Finding | None:
    """The first finding of these rules that is worth an act, or may be."""
    return next((f for f in report.findings if f.rule in rules and _may_matter(f)), None)


def _may_matter(finding: Finding) -> bool:
    """A severity rests on the low forecast; what is likely, though uncertain, keeps a box open too."""
    likely = finding.saving is not None and finding.saving.mid_ratio >= LIKELY_RATIO
    return likely or finding.severity is not Severity.INFO


def _skipped(report: Report, *rules: str) -> str | None:
    return next((s.reason for s in report.skipped if s.rule in rules), None)


def never_recorded(what: str) -> Callable[[Scene], Answer]:
    return lambda scene: ("unknown", what)


def ask_pinned(scene: Scene) -> Answer:
    if scene.accelerated is None:
        return "unknown", "it is unknown whether an accelerator is used"
    if not scene.accelerated:
        return "not-applicable", "training runs on the CPU: nothing is copied to a device"
    return by_rule("pageable-transfer", good="copies come from pinned memory")(scene)


def ask_precision(scene: Scene) -> Answer:
    """The rule has nothing to say of a model whose precision was not seen; that is no reason for a tick."""
    judged = by_rule("full-precision", good="no gain forecast")(scene)
    if judged[0] != "ticked" or scene.steps is None:
        return judged
    model, autocast = (_dtype(scene.steps, name) for name in ("model_dtype", "autocast_dtype"))
    if autocast is not None:
        return "ticked", f"autocast to {autocast}"
    if model is None:
        return "unknown", "the model's precision and autocast are unknown"
    return ("ticked", f"the model uses {model}") if model != "float32" else judged


def _dtype(report: Report, name: str) -> str | None:
    dtype = report.environment.get(name)
    return dtype.removeprefix("torch.") if isinstance(dtype, str) else None


def ask_compile(scene: Scene) -> Answer:
    """Breaks and recompilations are judged whether or not the model is compiled."""
    broken = by_rule("graph-break", "recompilation", good="")(scene)
    if broken[0] == "unticked":
        return broken
    return by_rule("uncompiled-model", good="in use, or no gain forecast")(scene)


def ask_threads(scene: Scene) -> Answer:
    """The machine as it is now, and the run: either keeps the box open."""
    now = by_check("threads", "thread-binding")(scene)
    if now[0] == "unticked" or scene.steps is None:
        return now
    return by_rule("oversubscription", good="the run's threads fit its cores")(scene)


def ask_sync(scene: Scene) -> Answer:
    report = scene.steps
    if report is not None and _world_size(report) == 1:
        return "not-applicable", ONE_RANK
    return by_rule("sync-every-microstep", good="gradients are exchanged once per step")(scene)


def ask_hidden(scene: Scene) -> Answer:
    report = scene.steps
    if report is not None and _world_size(report) == 1:
        return "not-applicable", ONE_RANK
    rules = ("exposed-communication", "small-buckets", "unused-parameter-scan", "slow-link")
    return by_rule(*rules, good="no costly communication outside the backward")(scene)


def ask_balanced(scene: Scene) -> Answer:
    report = scene.steps
    if report is not None and _world_size(report) == 1:
        return "not-applicable", "one rank: no waiting for other ranks"
    return by_rule("straggler", good="no rank keeps the others waiting")(scene)


def ask_host_sync(scene: Scene) -> Answer:
    if scene.steps is not None and scene.accelerated is False:
        return "not-applicable", "training runs on the CPU, where nothing runs asynchronously"
    return by_rule("host-sync", good="no call in the loop waits for the device")(scene)


def ask_headroom(scene: Scene) -> Answer:
    report = scene.steps
    memory = None if report is None else report.memory
    if memory is None or memory.peak_bytes is None:
        return "unknown", NO_RUN if scene.report is None else "memory was not measured"
    if memory.total_bytes is None or memory.peak_ratio is None:
        return "unknown", f"the peak is {format_bytes(memory.peak_bytes)} of an unknown total"
    text = (
        f"the peak is {format_bytes(memory.peak_bytes)} of {format_bytes(memory.total_bytes)} ({memory.peak_ratio:.0%})"
    )
    return ("ticked" if memory.peak_ratio <= FULL_RATIO else "unticked"), text


def ask_no_leak(scene: Scene) -> Answer:
    return by_rule("memory-growth", good="memory does not grow from step to step")(scene)


def ask_utilization(scene: Scene) -> Answer:
    """Of the device; on a CPU of the cores, for which guides give no band."""
    report = scene.steps
    if report is None or report.utilization is None:
        return "unknown", NO_RUN if scene.report is None else NO_STEPS
    used = report.utilization
    found = _found(report, "low-utilization")
    if found is not None:
        return "unticked", f"{found.rule}: {found.title}"
    name = "cpu_utilization_ratio" if scene.accelerated is False else "utilization_ratio"
    ratio = used.device_ratio if name == "utilization_ratio" else used.cpu_utilization_ratio
    if ratio is None:
        return "unknown", used.unknown.get(name, "it was not measured")
    if name == "cpu_utilization_ratio":
        return "ticked", f"{TEXT[name]} is {ratio:.0%}, and no target was missed"
    text = f"{TEXT[name]} is {ratio:.0%}; guides recommend at least {GOOD_RATIO:.0%}"
    return ("ticked" if ratio >= GOOD_RATIO else "unticked"), text


def ask_mfu(scene: Scene) -> Answer:
    report = scene.steps
    if report is None or report.utilization is None:
        return "unknown", NO_RUN if scene.report is None else NO_STEPS
    used = report.utilization
    if used.mfu_ratio is None:
        return "unknown", used.unknown.get("mfu_ratio", "it was not measured")
    return "ticked", f"MFU is {used.mfu_ratio * 100:.1f}% ({used.peak})"


def ask_warmed_up(scene: Scene) -> Answer:
    report = scene.steps
    if report is None or report.step is None:
        return "unknown", NO_RUN if scene.report is None else NO_STEPS
    step = report.step
    text = f"{step.steady_count:,} steady of {plural(step.count, 'step')}"
    return ("ticked" if step.steady_count >= FEW_STEPS else "unticked"), text


def ask_throughput(scene: Scene) -> Answer:
    report = scene.steps
    if report is None or report.step is None:
        return "unknown", NO_RUN if scene.report is None else NO_STEPS
    for rate, noun in (
        (report.step.tokens_per_s, "tokens/s"),
        (report.step.samples_per_s, "samples/s"),
        (report.step.batches_per_s, "batches/s"),
    ):
        if rate is not None:
            return "ticked", f"{rate:,.1f} {noun}"
    return "unknown", "no batches were observed, so the rate is unknown"


def ask_finished(scene: Scene) -> Answer:
    report = scene.report
    if report is None or report.outcome is None:
        return "unknown", NO_RUN if report is None else "how the run ended was not recorded"
    outcome = report.outcome
    if outcome.ended == "running":
        return "unknown", "the run is still going, or its end was not recorded"
    code = "" if outcome.exit_code is None else f", exit code {outcome.exit_code}"
    clean = outcome.ended == "completed" and outcome.exit_code in (0, None)
    return ("ticked" if clean else "unticked"), f"{outcome.ended}{code}"


def ask_recorded(scene: Scene) -> Answer:
    report = scene.report
    if report is None:
        return "unknown", NO_RUN
    return ("ticked", f"kept in {report.run_folder}") if report.run_folder else ("unknown", "not a recorded run")


def ask_steady(scene: Scene) -> Answer:
    report = scene.steps
    if report is None or report.step is None or report.step.cv_ratio is None:
        return "unknown", NO_RUN if scene.report is None else "too few steps to judge"
    ratio = report.step.cv_ratio
    return ("ticked" if ratio <= 0.1 else "unticked"), f"step times vary by {ratio * 100:.0f}% of their mean"


def ask_findings(scene: Scene) -> Answer:
    report = scene.steps
    if report is None:
        return "unknown", NO_RUN if scene.report is None else NO_STEPS
    serious = [f for f in report.findings if f.kind is Kind.FAULT and f.severity in (Severity.HIGH, Severity.MEDIUM)]
    if serious:
        return "unticked", ", ".join(f.rule for f in serious[:4])
    return "ticked", "no fault of severity high or medium"


def ask_overhead(scene: Scene) -> Answer:
    report = scene.steps
    ratio = None if report is None or report.overhead is None else report.overhead.share_ratio
    if ratio is None:
        return "unknown", NO_RUN if scene.report is None else "hotloop's own overhead is unknown"
    return ("ticked" if ratio <= 0.02 else "unticked"), f"hotloop's overhead is {ratio * 100:.2f}% of the step time"


def ask_compression(scene: Scene) -> Answer:
    report = scene.steps
    if report is None:
        return "unknown", NO_RUN if scene.report is None else NO_STEPS
    if _world_size(report) == 1:
        return "not-applicable", ONE_RANK
    if report.environment.get("comm_hook") is not None:
        return "ticked", f"DDP's communication hook is {report.environment['comm_hook']}"
    tick, evidence = by_rule("slow-link", "exposed-communication", good="compressing gradients would gain nothing")(
        scene
    )
    return ("not-applicable" if tick == "ticked" else tick), evidence


def by_memory(fact: str, *, alone: bool, name: str) -> Callable[[Scene], Answer]:
    """Ticked when this saver of memory was seen; without it, open when memory is short, else not applicable."""

    def ask(scene: Scene) -> Answer:
        report = scene.report
        if report is None:
            return "unknown", NO_RUN
        short = _found(report, "out-of-memory", "memory-pressure")
        if report.step is None and short is None:
            return "unknown", NO_STEPS
        if not alone and _world_size(report) == 1:
            return "not-applicable", "one rank: nothing to shard"
        if report.environment.get(fact):
            return "ticked", f"{name} is used"
        if short is not None:
            return "unticked", f"{short.rule}: {short.title}"
        tick, evidence = ask_headroom(scene)
        return ("not-applicable" if tick == "ticked" else tick), f"{name} is not used; {evidence}"

    return ask


def ask_links(scene: Scene) -> Answer:
    if scene.accelerated is False:
        return "not-applicable", "training runs on the CPU"
    check = scene.checks.get("gpu-links")
    if check is None:
        return ("unknown", "not checked") if scene.accelerated is None else ("not-applicable", "fewer than two GPUs")
    kinds = check.values.get("links")
    if not isinstance(kinds, list) or not kinds:
        return "unknown", check.why or "nvidia-smi does not report the kind of link"
    direct = all(str(kind).startswith("NV") for kind in kinds)
    return ("ticked" if direct else "unticked"), f"links between GPUs: {', '.join(map(str, kinds))}"


def ask_cudnn(scene: Scene) -> Answer:
    if scene.accelerated is False:
        return "not-applicable", "training runs on the CPU, which does not use cuDNN"
    report = scene.report
    if report is not None and any(o.technique == "cudnn-benchmark" and o.status == "applied" for o in report.strategy):
        return "ticked", "enabled by the run's strategy"
    return "unknown", "not recorded; for convolutions with constant shapes, check torch.backends.cudnn.benchmark"


def ask_scaling(scene: Scene) -> Answer:
    report = scene.steps
    if report is None:
        return "unknown", NO_RUN if scene.report is None else NO_STEPS
    if _world_size(report) == 1:
        return "not-applicable", "one rank"
    return "unknown", "cannot be measured from one run; use hotloop bench scaling"


def ask_network(scene: Scene) -> Answer:
    report = scene.steps
    if report is not None and _world_size(report) == 1:
        return "not-applicable", ONE_RANK
    return by_rule("slow-link", good="no slow link")(scene)


def ask_transfers(scene: Scene) -> Answer:
    if scene.accelerated is False:
        return "not-applicable", "training runs on the CPU: nothing is copied to a device"
    return by_rule("pageable-transfer", "host-sync", good="no costly copies between host and device")(scene)


def ask_operators(scene: Scene) -> Answer:
    """launch-bound needs a device, and would leave the box of a training on the CPU unknown."""
    rules = ["python-gradient-loop", "redundant-compute", "uncompiled-model"]
    if scene.accelerated is not False:
        rules.append("launch-bound")
    return by_rule(*rules, good="no loops over tensors, no repeated work, no gain forecast for fusion")(scene)


def _world_size(report: Report) -> int:
    return max((rank.world_size for rank in report.ranks), default=1)


def _entry(entry_id: str, stage: Stage, title: str, ask: Callable[[Scene], Answer]) -> ChecklistEntry:
    return ChecklistEntry(id=entry_id, stage=stage, title=title, ask=ask)


ITEMS: tuple[ChecklistEntry, ...] = (
    _entry(
        "right-build",
        "before",
        "torch supports the machine and its accelerator",
        by_check("torch", "accelerator", "architectures"),
    ),
    _entry("threads-fit", "before", "no more threads than cores, and workers can use all cores", ask_threads),
    _entry(
        "room-for-workers",
        "before",
        "shared memory and file descriptors are sufficient for loader workers",
        by_check("shared-memory", "file-descriptors"),
    ),
    _entry("memory-free", "before", "enough host memory is free and no swap is used", by_check("memory", "swap")),
    _entry("machine-quiet", "before", "no other program uses the machine", by_check("load", "steal", "gpu-memory")),
    _entry(
        "storage-known", "before", "the speed of the data's storage is known", by_check("data-folder", "read-speed")
    ),
    _entry(
        "links-known",
        "before",
        "links between devices and hosts are in order",
        by_check("backends", "gpu-links", "pcie-width", "interfaces", "infiniband"),
    ),
    _entry("nvlink-used", "before", "GPUs of this machine are connected by NVLink", ask_links),
    _entry("variables-clean", "before", "no debugging or outdated variable is set", ask_variables),
    _entry(
        "seeds-set",
        "before",
        "seeds and determinism are set deliberately",
        never_recorded("not recorded; check torch.manual_seed and use_deterministic_algorithms in the program"),
    ),
    _entry(
        "data-overlaps",
        "during",
        "data loading overlaps with computation",
        by_share("input_wait", 0.10, "input-bound", "preprocessing-in-loop"),
    ),
    _entry(
        "workers-stay",
        "during",
        "loader workers persist between epochs",
        by_rule("worker-restart", good="no costly worker restarts"),
    ),
    _entry("memory-pinned", "during", "batches for an accelerator come from pinned memory", ask_pinned),
    _entry("no-needless-transfers", "during", "no unnecessary copies between host and device", ask_transfers),
    _entry(
        "no-padding",
        "during",
        "batches contain little padding",
        by_rule("padding-waste", good="little padding in the sampled batches"),
    ),
    _entry(
        "precision-tried",
        "during",
        "mixed precision is in use, or does not help",
        ask_precision,
    ),
    _entry("compile-tried", "during", "torch.compile is in use without graph breaks, or does not help", ask_compile),
    _entry(
        "operators-fused",
        "during",
        "tensor operations are batched and fused instead of looped in Python",
        ask_operators,
    ),
    _entry("cudnn-benchmark", "during", "cuDNN picks the fastest convolution (benchmark)", ask_cudnn),
    _entry(
        "optimizer-fused",
        "during",
        "the optimizer updates all tensors at once",
        by_rule("slow-optimizer", "python-gradient-loop", good="the optimizer takes little time"),
    ),
    _entry(
        "batch-fills",
        "during",
        "the batch is large enough to use the device",
        by_rule("small-batch", good="no gain forecast for a larger batch"),
    ),
    _entry("device-used", "during", "GPU utilization is high (on a CPU: its cores are used)", ask_utilization),
    _entry(
        "no-recompute",
        "during",
        "nothing is computed twice unnecessarily",
        by_rule("redundant-compute", "needless-recompute", good="no unnecessary forward or backward"),
    ),
    _entry("accumulation-quiet", "during", "gradients are not synchronised in every micro-batch", ask_sync),
    _entry("communication-hidden", "during", "communication is hidden behind computation", ask_hidden),
    _entry(
        "gradients-compressed", "during", "gradients are compressed if the network is the bottleneck", ask_compression
    ),
    _entry("network-in-order", "during", "the network has its expected speed", ask_network),
    _entry("ranks-balanced", "during", "no rank waits for a slower one", ask_balanced),
    _entry("no-host-sync", "during", "nothing in the loop waits for the device (item, print, cpu)", ask_host_sync),
    _entry(
        "logging-rare",
        "during",
        "logging is not done in every step",
        by_rule("logging-overhead", good="logging takes little time"),
    ),
    _entry(
        "validation-small",
        "during",
        "validation takes a small share",
        by_share("validation", 0.10, "frequent-validation"),
    ),
    _entry(
        "checkpoints-small",
        "during",
        "checkpointing takes a small share",
        by_share("checkpoint", 0.05, "blocking-checkpoint"),
    ),
    _entry(
        "gc-quiet",
        "during",
        "Python's garbage collector does not pause the loop",
        by_rule("gc-pause", good="no costly pauses"),
    ),
    _entry("memory-headroom", "during", "free memory is known", ask_headroom),
    _entry(
        "activations-recomputed",
        "during",
        "activation checkpointing is in use if memory is short",
        by_memory("is_checkpointing", alone=True, name="activation checkpointing"),
    ),
    _entry(
        "state-sharded",
        "during",
        "ZeRO or FSDP shards the state if memory is short",
        by_memory("is_sharded", alone=False, name="sharding"),
    ),
    _entry("memory-steady", "during", "memory does not grow", ask_no_leak),
    _entry("warm-up-left-out", "after", "there are enough steps after the warm-up", ask_warmed_up),
    _entry("steps-steady", "after", "step times vary little enough to compare runs", ask_steady),
    _entry("throughput-known", "after", "throughput is recorded, in samples or tokens", ask_throughput),
    _entry("mfu-known", "after", "model FLOPs utilization (MFU) is recorded", ask_mfu),
    _entry("scaling-known", "after", "scaling efficiency was measured", ask_scaling),
    _entry("ended-well", "after", "the run ended normally", ask_finished),
    _entry("faults-gone", "after", "no serious fault remains", ask_findings),
    _entry("cheap-to-observe", "after", "hotloop's overhead is small", ask_overhead),
    _entry("run-kept", "after", "the run is kept for comparison with the next one", ask_recorded),
)
"""The checklist, in the order in which it is shown."""
