import pytest

from hotloop.core.phases import PHASES
from hotloop.core.recording import FLAG_DEEP
from hotloop.evidence.analyze.summary import (
    summarize_breakdown,
    summarize_device_phases,
    summarize_lines,
    summarize_memory,
    summarize_overhead,
    summarize_rank,
    summarize_steps,
    warn_of_excluded,
)
from hotloop.evidence.analyze.training_report import build_scorecard
from hotloop.evidence.analyze.trainings import Training, analyze_run

from .synthetic import MS, Rows, recording, steps


def training_of(*ranks: Rows, facts=(), **process) -> Training:
    """One training; each rank is the rows of its process."""
    recordings = [
        recording(rows, *facts, **{"rank": r, "local_rank": r, "world_size": len(ranks), "pid": 100 + r, **process})
        for r, rows in enumerate(ranks)
    ]
    (training,) = analyze_run(recordings)
    return training


def two_ranks(*facts, **second) -> Training:
    rows = [steps([extra] * 60) for extra in ({}, second)]
    for one in rows:
        one.end(other_ns=4 * MS)
    return training_of(*rows, facts=facts)


def test_ranks_are_summed_up():
    training = two_ranks(input_wait_ns=11 * MS)
    step = summarize_steps(training)
    assert (step.count, step.steady_count, step.unit, step.units_per_step) == (60, 59, "sample", 32.0)
    assert (step.mean_ns, step.median_ns, step.tail_ns) == (15 * MS, 15 * MS, 4 * MS)
    assert step.samples_per_s == pytest.approx(16 / 0.010 + 16 / 0.020)
    assert step.batches_per_s == pytest.approx(100 + 50)
    assert (step.tokens_per_s, step.time_to_first_step_ns) == (None, 2_010 * MS)
    assert summarize_steps(two_ranks(samples=0)).samples_per_s is None
    top = summarize_breakdown(training)
    assert top.share("input_wait") == pytest.approx((0.1 + 11 / 20) / 2)
    assert sum(top.share(p) for p in PHASES) == pytest.approx(1.0, abs=1e-12)
    first, second = map(summarize_rank, training.processes)
    assert (first.rank, first.mean_ns, second.rank, second.mean_ns) == (0, 10 * MS, 1, 20 * MS)
    assert [process.timeline.rank for process in training.processes] == [0, 1]


def test_device_times_of_the_ranks_are_weighed_by_their_timed_steps():
    rows = [Rows(), Rows()]
    for i in range(60):
        rows[0].step(device_forward_ns=20 * MS)
        rows[1].step(device_forward_ns=80 * MS if i >= 40 else -1)
    training = training_of(*rows)
    (forward,) = summarize_device_phases(training)
    assert (forward.phase, forward.steps_count, forward.host_mean_ns) == ("forward", 59 + 20, 3 * MS)
    assert forward.device_mean_ns == round((59 * 20 + 20 * 80) / 79 * MS)
    assert training.analysis.mean("device_forward_ns") == 50 * MS
    assert training.analysis.mean("device_h2d_ns") == -1.0


def ranks_with_memory(*peaks_bytes: int | None, hosts: str, **device: int) -> Training:
    recordings = []
    for rank, (peak_bytes, host) in enumerate(zip(peaks_bytes, hosts, strict=True)):
        fact = {"kind": "memory", "row": 5, "rss_bytes": peak_bytes, "device": device or None}
        process = {"rank": rank, "local_rank": rank, "world_size": len(hosts), "pid": 100 + rank, "host": host}
        recordings.append(recording(steps([{"rss_bytes": peak_bytes or 0}] * 60), fact, **process))
    (training,) = analyze_run(recordings)
    return training


@pytest.mark.parametrize(
    ("peaks_gib", "hosts", "device", "peak_bytes", "total_bytes"),
    [
        ((6, 5, 8), "aab", {}, 11 << 30, 16 << 30),  # of all ranks on the fullest host
        ((6, None), "aa", {}, None, 16 << 30),
        ((6, 5), "aa", {"allocated": 10, "reserved": 20, "peak": 40, "total": 80}, 40, 80),
    ],
)
def test_memory_is_that_of_the_fullest_host_or_device(peaks_gib, hosts, device, peak_bytes, total_bytes):
    peaks = [None if peak is None else peak << 30 for peak in peaks_gib]
    memory = summarize_memory(ranks_with_memory(*peaks, hosts=hosts, **device))
    assert (memory.peak_bytes, memory.total_bytes) == (peak_bytes, total_bytes)
    assert memory.peak_ratio == (None if peak_bytes is None else peak_bytes / total_bytes)


def test_ranks_that_nearly_fill_their_host_together_are_told():
    full = ranks_with_memory(8 << 30, 7 << 30, hosts="aa")
    assert [h.message for h in full.health if "memory" in h.message] == [
        "the processes on a may together need 94% of its memory: the sum of their peaks, "
        "which counts shared pages once per process"
    ]
    assert full.analysis.ranks[0].memory_peak_bytes == 8 << 30
    apart = ranks_with_memory(15 << 30, 7 << 30, hosts="ab")
    assert [h for h in apart.health if "memory" in h.message] == []


def test_lines_are_shares_of_their_phase():
    counts = [
        ["after_backward_ns", [["/t.py", 9, "main"]], "x:y", 6],
        ["other_ns", [["/t.py", 9, "main"]], "x:y", 2],
        ["other_ns", [], "x:y", 2],
        ["nograd_ns", [["/t.py", 4, "main"]], "x:y", 5],
    ]
    lines = summarize_lines(two_ranks({"kind": "samples", "rows": [10, 20], "counts": counts}))
    assert [(line.phase, line.line, line.share_ratio) for line in lines] == [("forward", 4, 1.0), ("other", 9, 0.8)]


def test_lines_of_validation_are_named_so():
    rows = steps(
        {"nograd_ns": 50 * MS, "bursts": 1, "bursts_other_loader": 1} if i % 20 == 0 else {} for i in range(100)
    )
    fact = {"kind": "samples", "rows": [10, 20], "counts": [["nograd_ns", [["/t.py", 4, "main"]], "x:y", 5]]}
    training = training_of(rows, facts=[fact])
    assert [line.phase for line in summarize_lines(training)] == ["validation"]


def test_overhead_is_summed_over_processes_and_its_share_averaged():
    overhead = summarize_overhead(
        two_ranks({"kind": "overhead", "hooks_ns": 6 * MS, "sampler_ns": None, "method": "m"})
    )
    assert (overhead.hooks_ns, overhead.sampler_ns, overhead.method) == (12 * MS, None, "m")
    assert overhead.share_ratio == pytest.approx(0.01)
    assert summarize_overhead(two_ranks()) is None


def test_the_scorecard_says_unknown_where_nothing_was_measured():
    card = {row.name.split(",")[0]: row for row in build_scorecard(two_ranks().analysis)}
    assert (card["data wait"].measured_ratio, card["data wait"].verdict) == (pytest.approx(0.1), "fair")
    reduces = ("all-reduce (hidden part too) over backward", "exposed all-reduce over backward")
    for name in ("host-to-device copies", *reduces):
        assert (card[name].measured_ratio, card[name].verdict) == (None, "unknown")
    assert (card["forward"].verdict, card["optimizer"].reason) == ("unknown", "typical 5–10%")


def test_data_wait_stands_in_its_band():
    for wait_ms, verdict in ((0, "good"), (2, "fair"), (40, "bad")):
        rows = steps([{"input_wait_ns": wait_ms * MS}] * 50)
        assert build_scorecard(training_of(rows).analysis)[0].verdict == verdict


@pytest.mark.parametrize(
    ("backwards", "backward_ms", "comm_ms", "whole", "exposed"),
    [(8, 46, 10, 10 / 46, 7 / 46), (2, 20, 4, 0.2, 0.05)],
)
def test_all_reduce_is_compared_with_all_backwards(backwards, backward_ms, comm_ms, whole, exposed):
    rows = steps([{"backwards": backwards, "backward_ns": backward_ms * MS, "synced_backwards": 1}] * 50)
    stats = [{"kind": "ddp_stats", "row": r, "comm_ns": comm_ms * MS, "overlap_ns": 3 * MS} for r in range(10, 20)]
    card = {row.name: row for row in build_scorecard(training_of(rows, facts=[{"kind": "ddp"}, *stats]).analysis)}
    assert card["all-reduce (hidden part too) over backward"].measured_ratio == pytest.approx(whole)
    row = card["exposed all-reduce over backward"]
    assert (row.measured_ratio, row.good, row.bad) == (pytest.approx(exposed), "", "")


def test_an_optimizer_that_was_never_seen_has_no_share():
    rows = Rows()
    for _ in range(50):
        rows.backward(optimizer_ns=0, other_ns=MS)
    training = training_of(rows)
    row = next(row for row in build_scorecard(training.analysis) if row.name.startswith("optimizer"))
    assert (row.measured_ratio, row.verdict) == (None, "unknown")


def slow_start(slow_count: int, tail_ms: int = 0) -> Training:
    rows = steps(
        {"compile_ns": 80 * MS if i < slow_count else 0, "other_ns": 90 * MS if i < slow_count else 0}
        for i in range(100)
    )
    rows.end(other_ns=tail_ms * MS)
    return training_of(rows)


def test_what_is_left_out_and_the_steady_steps_add_up_to_the_run():
    left_out = summarize_steps(slow_start(10, tail_ms=100)).excluded
    assert (left_out.count, left_out.warmup_count, left_out.later_count) == (10, 10, 0)
    assert (left_out.warmup_ns, left_out.later_ns, left_out.tail_ns) == (1_000 * MS, 0, 100 * MS)
    assert left_out.total_ns + 90 * 10 * MS == left_out.run_ns == 2_000 * MS
    assert left_out.ratio == pytest.approx(0.55)
    assert left_out.startup_ns == 2_000 * MS
    assert sum(left_out.phase_ns.values()) == left_out.warmup_ns
    assert left_out.main_part == "compilation"
    (process,) = slow_start(10).processes
    assert process.timeline.excluded_ratio == (1.0,) * 10 + (0.0,) * 90


def test_steps_that_were_recorded_in_detail_are_left_out_later():
    rows = steps({"flags": FLAG_DEEP if 40 <= i < 45 else 0} for i in range(100))
    left_out = summarize_steps(training_of(rows)).excluded
    assert (left_out.warmup_count, left_out.later_count) == (1, 5)
    assert (left_out.later_ns, left_out.total_ns) == (50 * MS, 60 * MS)


def test_a_warning_tells_of_what_is_left_out_from_a_tenth_of_the_run_on():
    (warning,) = warn_of_excluded(slow_start(10))
    assert warning.level == "warning"
    assert warning.message == (
        "shares, costs and savings cover the steady steps, 47% of the run: the other 1 s are left out; most of those "
        "steps is compilation"
    )
    assert warn_of_excluded(slow_start(1)) == ()


def test_the_tail_is_told_by_its_phases():
    """Before: an evaluation and the last save together were one validation."""
    rows = steps([{}] * 20)
    rows.end(checkpoint_ns=130 * MS, nograd_ns=160 * MS, burst_gap_ns=0, bursts=1, bursts_eval_mode=1, other_ns=7 * MS)
    left_out = summarize_steps(training_of(rows)).excluded
    assert left_out.tail_phase_ns == {"checkpoint": 130 * MS, "validation": 160 * MS, "other": 7 * MS}
    assert sum(left_out.tail_phase_ns.values()) == left_out.tail_ns == 297 * MS
