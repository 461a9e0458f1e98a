from dataclasses import replace
from typing import Any

import pytest

from hotloop.bench.checklist import ITEMS, STAGES, fill_checklist
from hotloop.core.doctor import ChecklistItem, DoctorReport, MachineCheck
from hotloop.core.findings import Basis, Finding, Kind, Saving, Skipped
from hotloop.core.phases import PHASES, Breakdown, PhaseStats
from hotloop.core.report import MemorySummary, Outcome, Overhead, RankSummary, Report, StepSummary

STEP_NS = 10_000_000


def make_breakdown(**shares: float) -> Breakdown:
    shares.setdefault("forward", 1.0 - sum(shares.values()))

    def stats(share: float) -> PhaseStats:
        mean_ns = round(share * STEP_NS)
        return PhaseStats(
            total_ns=mean_ns * 100,
            share_ratio=share,
            mean_ns=mean_ns,
            std_ns=0,
            min_ns=mean_ns,
            median_ns=mean_ns,
            p95_ns=mean_ns,
            p99_ns=mean_ns,
            max_ns=mean_ns,
        )

    return Breakdown({phase: stats(shares.get(phase, 0.0)) for phase in PHASES})


def make_rank(rank: int, world_size: int, breakdown: Breakdown, memory: MemorySummary) -> RankSummary:
    return RankSummary(
        rank=rank, local_rank=rank, host="h", pid=9, restart=0, world_size=world_size, anchor="AdamW", steps=120,
        skipped_steps=0, ended="completed", mean_ns=STEP_NS, median_ns=STEP_NS, breakdown=breakdown, device=None,
        memory=memory, lost_rows=0,
    )  # fmt: skip


def make_report(*, world_size: int = 1, steps: bool = True, **changes: Any) -> Report:
    breakdown = changes.pop("breakdown", make_breakdown(input_wait=0.02))
    memory = MemorySummary(
        peak_bytes=2 << 30, allocated_bytes=None, reserved_bytes=None, total_bytes=16 << 30, peak_ratio=0.125,
        growth_bytes_per_step=0.0,
    )  # fmt: skip
    step = StepSummary(
        count=120, steady_count=110, unit="sample", units_per_step=16.0, mean_ns=STEP_NS, median_ns=STEP_NS,
        p95_ns=STEP_NS, cv_ratio=0.02, tail_ns=0, time_to_first_step_ns=1, batches_per_s=100.0, samples_per_s=1600.0,
        tokens_per_s=None,
    )  # fmt: skip
    given: dict[str, Any] = {
        "tool_version": "0",
        "command": ("python", "train.py"),
        "environment": {"accelerator": None},
        "outcome": Outcome(ended="completed", exit_code=0, signal=None, training_seen=steps),
        "verdict": "fine",
        "step": step if steps else None,
        "breakdown": breakdown if steps else None,
        "device": None,
        "memory": memory if steps else None,
        "ranks": tuple(make_rank(r, world_size, breakdown, memory) for r in range(world_size)) if steps else (),
        "findings": (),
        "combined_saving": None,
        "forecast_history": {},
        "skipped": (),
        "health": (),
        "overhead": Overhead(
            hooks_ns=1, sampler_ns=1, deep_window_ns=0, share_ratio=0.002, memory_bytes=1, method="counted"
        ),
        "next_command": None,
        "run_folder": ".hotloop/a",
    }
    return Report(**given | changes)


def make_finding(rule: str, low: float, mid: float) -> Finding:
    return Finding(
        rule=rule, kind=Kind.FAULT, title=f"{rule} was found", phase=None, cost_ns=1, cost_ratio=0.9,
        saving=Saving(low_ratio=low, mid_ratio=mid, high_ratio=0.9, basis=Basis.SIMULATED), evidence={},
    )  # fmt: skip


def make_check(check_id: str, status: Any = "good", why: str = "") -> MachineCheck:
    return MachineCheck(id=check_id, group="cpu", title=check_id, status=status, measured="4 things", why=why)


def item_of(items: tuple[ChecklistItem, ...], item_id: str) -> ChecklistItem:
    return next(item for item in items if item.id == item_id)


def test_the_checklist_is_whole_and_in_order() -> None:
    assert len({entry.id for entry in ITEMS}) == len(ITEMS) >= 25
    order = [STAGES.index(entry.stage) for entry in ITEMS]
    assert order == sorted(order)
    assert set(order) == {0, 1, 2}


def test_without_machine_and_run_everything_is_unknown() -> None:
    items = fill_checklist((), None)
    assert {item.tick for item in items} == {"unknown"}
    assert all(item.evidence for item in items)


def test_a_healthy_single_rank_run_has_no_open_item() -> None:
    items = fill_checklist((), make_report())
    assert [item for item in items if item.tick == "unticked"] == []
    assert item_of(items, "throughput-known").evidence == "1,600.0 samples/s"
    assert item_of(items, "accumulation-quiet").tick == "not-applicable"
    assert item_of(items, "memory-headroom").evidence == "the peak is 2 GiB of 16 GiB (12%)"
    assert item_of(items, "seeds-set").tick == "unknown"


def test_a_run_that_never_trained_ticks_nothing_about_the_loop() -> None:
    items = fill_checklist((), make_report(steps=False))
    during = [item for item in items if item.stage == "during"]
    assert {item.tick for item in during} == {"unknown", "not-applicable"}
    on_the_cpu = {"memory-pinned", "no-needless-transfers", "cudnn-benchmark"}
    assert {item.id for item in during if item.tick == "not-applicable"} == on_the_cpu


@pytest.mark.parametrize(
    ("rule", "item_id"),
    [
        ("input-bound", "data-overlaps"),
        ("worker-restart", "workers-stay"),
        ("oversubscription", "threads-fit"),
        ("graph-break", "compile-tried"),
        ("logging-overhead", "logging-rare"),
        ("blocking-checkpoint", "checkpoints-small"),
        ("frequent-validation", "validation-small"),
        ("redundant-compute", "no-recompute"),
        ("gc-pause", "gc-quiet"),
    ],
)
def test_what_a_rule_found_keeps_its_box_open(rule: str, item_id: str) -> None:
    items = fill_checklist((), make_report(findings=(make_finding(rule, 0.2, 0.3),)))
    item = item_of(items, item_id)
    assert (item.tick, item.evidence) == ("unticked", f"{rule}: {rule} was found")
    assert item_of(items, "faults-gone").tick == "unticked"


def test_an_uncertain_finding_keeps_its_box_open_and_a_negligible_one_does_not() -> None:
    uncertain = fill_checklist((), make_report(findings=(make_finding("gc-pause", 0.0, 0.1),)))
    assert item_of(uncertain, "gc-quiet").tick == "unticked"
    negligible = fill_checklist((), make_report(findings=(make_finding("gc-pause", 0.0, 0.001),)))
    assert item_of(negligible, "gc-quiet").tick == "ticked"


def test_a_large_share_is_not_ticked_only_because_no_rule_spoke() -> None:
    items = fill_checklist((), make_report(breakdown=make_breakdown(input_wait=0.26, checkpoint=0.2)))
    assert item_of(items, "data-overlaps").tick == "unticked"
    assert "26.0%" in item_of(items, "data-overlaps").evidence
    assert item_of(items, "checkpoints-small").tick == "unticked"


def test_a_rule_that_could_not_judge_leaves_its_box_unknown() -> None:
    skipped = (Skipped(rule="full-precision", reason="no probe was made"),)
    item = item_of(fill_checklist((), make_report(skipped=skipped)), "precision-tried")
    assert (item.tick, item.evidence) == ("unknown", "no probe was made")


def test_several_ranks_are_judged_by_the_rules_of_ranks() -> None:
    found = (make_finding("straggler", 0.1, 0.2), make_finding("exposed-communication", 0.1, 0.2))
    items = fill_checklist((), make_report(world_size=2, findings=found))
    assert item_of(items, "ranks-balanced").tick == "unticked"
    assert item_of(items, "communication-hidden").tick == "unticked"
    assert item_of(items, "accumulation-quiet").tick == "ticked"


def test_machine_items_follow_the_checks() -> None:
    good = fill_checklist((make_check("shared-memory"), make_check("file-descriptors")), None)
    assert item_of(good, "room-for-workers").tick == "ticked"
    bad = fill_checklist((make_check("shared-memory", "harmful"), make_check("file-descriptors")), None)
    assert item_of(bad, "room-for-workers") == ChecklistItem(
        id="room-for-workers",
        stage="before",
        title=item_of(bad, "room-for-workers").title,
        tick="unticked",
        evidence="shared-memory: 4 things",
    )
    half = fill_checklist((make_check("shared-memory"), make_check("file-descriptors", "unknown", "no limits")), None)
    assert item_of(half, "room-for-workers").tick == "unknown"


def test_one_harmful_variable_keeps_the_variables_open() -> None:
    items = fill_checklist((make_check("variable-nccl-p2p-disable", "harmful"),), None)
    assert item_of(items, "variables-clean").tick == "unticked"


def test_a_failed_run_did_not_end_well() -> None:
    outcome = Outcome(ended="completed", exit_code=3, signal=None, training_seen=True)
    item = item_of(fill_checklist((), make_report(outcome=outcome)), "ended-well")
    assert (item.tick, item.evidence) == ("unticked", "completed, exit code 3")


@pytest.mark.parametrize(
    ("item_id", "world_size", "changes", "tick"),
    [
        ("gradients-compressed", 1, {}, "not-applicable"),
        ("gradients-compressed", 2, {}, "not-applicable"),
        ("gradients-compressed", 2, {"findings": (make_finding("slow-link", 0.1, 0.2),)}, "unticked"),
        ("gradients-compressed", 2, {"skipped": (Skipped(rule="slow-link", reason="no counters"),)}, "unknown"),
        ("gradients-compressed", 2, {"environment": {"comm_hook": "BF16_COMPRESS"}}, "ticked"),
        ("network-in-order", 2, {"skipped": (Skipped(rule="slow-link", reason="no counters"),)}, "unknown"),
        ("network-in-order", 2, {"findings": (make_finding("slow-link", 0.1, 0.2),)}, "unticked"),
        ("scaling-known", 1, {}, "not-applicable"),
        ("scaling-known", 2, {}, "unknown"),
        ("activations-recomputed", 1, {}, "not-applicable"),
        ("activations-recomputed", 1, {"environment": {"is_checkpointing": True}}, "ticked"),
        ("activations-recomputed", 1, {"findings": (make_finding("out-of-memory", 0.1, 0.2),)}, "unticked"),
        (
            "activations-recomputed",
            1,
            {"steps": False, "findings": (make_finding("out-of-memory", 0.1, 0.2),)},
            "unticked",
        ),
        ("state-sharded", 1, {"findings": (make_finding("out-of-memory", 0.1, 0.2),)}, "not-applicable"),
        ("state-sharded", 2, {"findings": (make_finding("out-of-memory", 0.1, 0.2),)}, "unticked"),
        ("state-sharded", 2, {"environment": {"is_sharded": True}}, "ticked"),
        ("no-needless-transfers", 1, {}, "not-applicable"),
        ("no-needless-transfers", 1, {"environment": {"accelerator": "cuda"}}, "ticked"),
        (
            "no-needless-transfers",
            1,
            {"environment": {"accelerator": "cuda"}, "findings": (make_finding("host-sync", 0.1, 0.2),)},
            "unticked",
        ),
        ("operators-fused", 1, {"findings": (make_finding("python-gradient-loop", 0.1, 0.2),)}, "unticked"),
        ("cudnn-benchmark", 1, {}, "not-applicable"),
        ("cudnn-benchmark", 1, {"environment": {"accelerator": "cuda"}}, "unknown"),
        ("nvlink-used", 1, {}, "not-applicable"),
    ],
)
def test_what_does_not_apply_is_told_from_what_is_open_and_what_is_unknown(
    item_id: str, world_size: int, changes: dict[str, Any], tick: str
) -> None:
    item = item_of(fill_checklist((), make_report(world_size=world_size, **changes)), item_id)
    assert (item.tick, bool(item.evidence)) == (tick, True)


@pytest.mark.parametrize(
    ("links", "tick"), [(["NV12"], "ticked"), (["NV12", "SYS"], "unticked"), (["PIX"], "unticked"), ([], "unknown")]
)
def test_links_over_pcie_are_no_nvlink(links: list[str], tick: str) -> None:
    check = replace(make_check("gpu-links"), values={"links": links})
    assert item_of(fill_checklist((check,), None), "nvlink-used").tick == tick


def test_items_become_plain_json() -> None:
    items = fill_checklist((), None)
    report = DoctorReport(tool_version="1", python=None, checks=(), checklist=items, run=None, next=None)
    assert set(report.to_json()["checklist"][0]) == {"id", "stage", "title", "tick", "evidence"}


@pytest.mark.parametrize(
    ("model", "autocast", "tick", "evidence"),
    [
        (None, None, "unknown", "the model's precision and autocast are unknown"),
        ("float32", None, "ticked", "no gain forecast (rule full-precision)"),
        ("torch.bfloat16", None, "ticked", "the model uses bfloat16"),
        ("float32", "torch.float16", "ticked", "autocast to float16"),
        (None, "bfloat16", "ticked", "autocast to bfloat16"),
    ],
)
def test_a_precision_that_was_not_seen_is_not_ticked(
    model: str | None, autocast: str | None, tick: str, evidence: str
) -> None:
    report = make_report(environment={"accelerator": None, "model_dtype": model, "autocast_dtype": autocast})
    item = item_of(fill_checklist((), report), "precision-tried")
    assert (item.tick, item.evidence) == (tick, evidence)


def test_a_precision_that_a_rule_found_or_could_not_judge_is_no_tick() -> None:
    environment = {"accelerator": None, "model_dtype": "float32", "autocast_dtype": None}
    finding = make_finding("input-bound", 0.1, 0.2)
    found = make_report(
        environment=environment, findings=(replace(finding, rule="full-precision", kind=Kind.OPPORTUNITY),)
    )
    assert item_of(fill_checklist((), found), "precision-tried").tick == "unticked"
    skipped = make_report(environment=environment, skipped=(Skipped(rule="full-precision", reason="no probe"),))
    assert item_of(fill_checklist((), skipped), "precision-tried").evidence == "no probe"
