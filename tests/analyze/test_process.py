import itertools
import time

import numpy as np
import pytest

from hotloop.core.phases import PHASES
from hotloop.core.recording import FIELD, FLAG_DEEP, STEP_FIELDS
from hotloop.core.report import DevicePhase
from hotloop.evidence.analyze.process import MAX_COLUMN_LENGTH, ProcessAnalysis, analyze_process

from .synthetic import MS, FakeRecording, Rows, process_fact, recording, steps

VALIDATION = {"nograd_ns": MS, "bursts": 1, "bursts_other_loader": 1}
NO_LOADER = {"batches": 0, "micro_batches": 0}


def plain(count: int = 100, **fields: int) -> Rows:
    return steps([fields] * count)


def analyze(rows: Rows, *facts, **process) -> ProcessAnalysis:
    found = analyze_process(recording(rows, *facts, **process))
    assert found is not None
    return found


def messages(found: ProcessAnalysis) -> list[str]:
    return [h.message for h in found.health]


def test_a_plain_training_is_described():
    optimizer = {"kind": "optimizer", "index": 0, "class": "AdamW", "where": ["t.py", 5, "main"]}
    found = analyze(plain(), optimizer, {"kind": "end", "ended": "completed"})
    rank = found.rank
    assert (rank.rank, rank.steps, rank.steady_count, rank.anchor) == (0, 100, 99, "AdamW")
    assert (rank.step_mean_ns, rank.step_median_ns) == (10 * MS, 10 * MS)
    assert {name: rank.breakdown.share(name) for name in ("input_wait", "forward", "backward", "optimizer")} == (
        pytest.approx({"input_wait": 0.1, "forward": 0.3, "backward": 0.5, "optimizer": 0.1})
    )
    assert (rank.samples_per_step, rank.tokens_per_step, found.ended) == (16.0, None, "completed")
    assert (found.time_to_first_step_ns, found.health, found.device_phases) == (2_010 * MS, (), ())
    assert (rank.mean["tokens"], rank.mean["device_forward_ns"]) == (-1.0, -1.0)
    assert (found.memory.peak_bytes, found.memory.peak_ratio) == (None, None)


def test_a_process_without_steps_trained_nothing():
    rows = Rows()
    assert analyze_process(recording(rows)) is None
    rows.end(other_ns=MS)
    assert analyze_process(recording(rows)) is None


def test_accumulated_micro_batches_are_counted_per_step():
    found = analyze(plain(50, micro_batches=4, batches=4, backwards=4, samples=64))
    assert (found.batches_per_step, found.rank.samples_per_step) == (4.0, 64.0)


def test_a_run_of_one_step_is_described_with_a_warning():
    found = analyze(plain(1))
    assert (found.rank.steady_count, found.rank.step_mean_ns, found.rank.step_noise_ratio) == (1, 10 * MS, 1.0)
    assert (found.step_cv_ratio, found.rank.memory_growth_bytes_per_step) == (None, None)
    assert [h.level for h in found.health] == ["warning"]


def test_the_mean_of_a_sampled_field_is_over_the_steps_that_know_it():
    found = analyze(steps({"recompute_ns": 10 if i % 10 == 5 else -1} for i in range(100)))
    assert found.rank.mean["recompute_ns"] == 10.0


def test_device_time_stands_beside_the_host_time_of_the_same_steps():
    timed = {"device_forward_ns": 40 * MS, "device_h2d_ns": 0, "forward_ns": 4 * MS}
    found = analyze(steps(timed if i % 10 == 5 else {} for i in range(100)))
    assert found.device_phases == (
        DevicePhase(phase="forward", device_mean_ns=40 * MS, host_mean_ns=4 * MS, steps_count=10),
    )
    assert found.rank.mean["device_forward_ns"] == 40 * MS
    assert sorted(set(found.rank.columns["device_forward_ns"])) == [-1, 40 * MS]


def test_a_step_of_two_rows_has_a_device_time_only_when_both_rows_have_one():
    rows = Rows()
    for i in range(50):
        rows.step(optimizer=0, device_backward_ns=7 * MS)
        rows.step(optimizer=1, device_backward_ns=5 * MS if i % 2 else -1)
    (backward,) = analyze(rows).device_phases
    assert (backward.phase, backward.device_mean_ns, backward.steps_count) == ("backward", 12 * MS, 25)


@pytest.mark.parametrize(
    ("accelerator", "tail", "told"),
    [
        ("cuda", {"other_ns": 9_000 * MS, "input_wait_ns": 960 * MS}, True),
        ("cuda", {"nograd_ns": 9_000 * MS, "input_wait_ns": 960 * MS}, False),
        ("cuda", {"other_ns": 20 * MS}, False),
        (None, {"other_ns": 9_000 * MS}, False),
    ],
)
def test_steps_that_replay_a_graph_are_missed_aloud(accelerator, tail, told):
    rows = plain(4)
    rows.end(**tail)
    found = [message for message in messages(analyze(rows, accelerator=accelerator)) if "CUDA graph" in message]
    assert [message.startswith("the figures cover the first 0.04 s of 10 s recorded") for message in found] == (
        [True] * told
    )


@pytest.mark.parametrize(("count", "text"), [(1, "1 step was left out"), (2, "2 steps were left out")])
def test_steps_of_a_profiler_are_left_out(count, text):
    found = analyze(steps([{}] * 30 + [{"flags": FLAG_DEEP}] * count + [{}] * 30))
    assert messages(found) == [f"{text}: a profiler was running, or hotloop recorded operators"]


def test_tokens_of_a_step_follow_from_the_sampled_rows():
    sampled = {"tokens": 1200, "padding_tokens": 400, "longest_tokens": 1500}
    rank = analyze(steps(sampled if i % 16 == 0 else {} for i in range(160))).rank
    assert (rank.tokens_per_step, rank.padding_ratio) == (1200.0, 0.25)
    assert rank.padding_to_longest_ratio == pytest.approx(0.2)


def test_tokens_of_a_pair_of_optimizers_are_not_counted_twice():
    rows = Rows()
    for i in range(100):
        rows.step(optimizer=0, samples=8, **({"tokens": 80} if i % 10 == 0 else {}))
        rows.step(optimizer=1, samples=0, **NO_LOADER)
    rank = analyze(rows).rank
    assert (rank.steps, rank.samples_per_step, rank.tokens_per_step) == (100, 8.0, 80.0)


@pytest.mark.parametrize(
    ("first", "second", "samples"),
    [
        ({"samples": 16}, {"samples": 16, **NO_LOADER}, 16.0),  # both work on one batch
        # a GAN's two backwards, or an actor's and its critic's, learn from the same batch as likely as not
        ({"samples": 16, **NO_LOADER}, {"samples": 8, **NO_LOADER}, None),
        ({"samples": 16, **NO_LOADER}, {"samples": 0, "backwards": 0, **NO_LOADER}, 16.0),
    ],
)
def test_a_batch_of_two_optimizers_counts_once(first, second, samples):
    rows = Rows()
    for _ in range(50):
        rows.step(optimizer=0, **first)
        rows.step(optimizer=1, **second)
    assert analyze(rows).rank.samples_per_step == samples


FETCHED_AHEAD = {0: {"samples": 32, "micro_batches": 2}, 31: NO_LOADER}  # of an epoch's 32 steps


@pytest.mark.parametrize(
    ("each", "samples"),
    [
        (lambda i: {"batches": 2}, None),  # two loaders, one of them counted
        (lambda i: {"batches": 1 + (i % 5 == 0)}, 16.0),
        (lambda i: {"samples": 16 if i % 3 == 0 else -1, **NO_LOADER}, None),
        (lambda i: {"samples": 5000, **VALIDATION} if i % 20 == 9 else {}, 16.0),
        (lambda i: {"samples": 1, "forwards": 25, **NO_LOADER}, None),  # states of an episode
        (lambda i: {"samples": 0}, None),
        (lambda i: FETCHED_AHEAD.get(i % 32, {}), 16.0),
        (lambda i: {**FETCHED_AHEAD.get(i % 32, {}), **(VALIDATION if i % 32 == 0 else {})}, 16.0),
    ],
)
def test_samples_of_a_step_are_those_it_trained_on(each, samples):
    found = analyze(steps(each(i) for i in range(96)))
    assert found.rank.samples_per_step == (None if samples is None else pytest.approx(samples, rel=0.005))
    assert not found.units.samples_vary


def test_memory_of_a_cpu_training_is_resident_memory():
    rows = steps({"rss_bytes": (1 << 30) + i * 1_000_000} for i in range(100))
    found = analyze(rows, {"kind": "memory", "row": 50, "rss_bytes": 5, "peak_rss_bytes": 2 << 30})
    memory = found.memory
    assert (memory.peak_bytes, memory.total_bytes, memory.peak_ratio) == (2 << 30, 1 << 34, 0.125)
    assert memory.allocated_bytes is None
    assert found.rank.memory_growth_bytes_per_step == pytest.approx(1e6)
    assert found.rank.memory_growth_noise_bytes_per_step == pytest.approx(0.0, abs=1e3)


@pytest.mark.parametrize(
    ("device", "peak_bytes", "total_bytes"),
    [
        ({"allocated": 10, "reserved": 20, "peak": 40, "total": 80, "retries": 0}, 40, 80),
        ({"allocated": 0, "reserved": 0, "peak": 0, "total": 80}, 7, 1 << 34),  # never used
    ],
)
def test_memory_of_an_accelerator_takes_its_place(device, peak_bytes, total_bytes):
    memory = analyze(plain(), {"kind": "memory", "row": 5, "rss_bytes": 7, "device": device}).memory
    assert (memory.peak_bytes, memory.total_bytes) == (peak_bytes, total_bytes)


def test_the_model_lives_where_its_optimizer_works_when_it_does_not_say():
    optimizer = {"kind": "optimizer", "index": 0, "class": "SGD", "device": "cpu"}
    assert analyze(plain(), optimizer, accelerator="cuda").rank.device_type == "cpu"


def test_columns_hold_one_entry_a_steady_step():
    columns = analyze(plain(40)).rank.columns
    assert set(columns) == set(STEP_FIELDS)
    assert list(columns["forward_ns"]) == [3 * MS] * 39
    assert list(columns["index"]) == list(range(1, 40))


def test_columns_of_a_block_add_up_to_the_block():
    rows = plain(20)
    rows.step(rows_merged=7, iterators=3, forward_ns=100, tokens=-1)
    columns = analyze(rows).rank.columns
    assert len(columns["iterators"]) == 26
    assert sum(columns["iterators"]) == 3
    assert sum(columns["forward_ns"][-7:]) == 100
    assert set(columns["tokens"]) == {-1}


def test_a_long_run_is_summarized_over_all_and_drawn_for_columns():
    count = 250_000
    array = np.repeat(plain(1).array(), count, axis=0)
    array[:, FIELD["index"]] = np.arange(count)
    array[::100, FIELD["checkpoint_ns"]] = 50 * MS
    spans = np.full(count, 10 * MS)
    spans[::100] += 50 * MS
    array[:, FIELD["end_ns"]] = np.cumsum(spans)
    array[:, FIELD["start_ns"]] = array[:, FIELD["end_ns"]] - spans
    start_s = time.process_time()
    found = analyze_process(FakeRecording(rows=array, process=process_fact()))
    assert time.process_time() - start_s < 6.0
    assert found.rank.steps == count
    column = found.rank.columns["checkpoint_ns"]
    assert len(column) == MAX_COLUMN_LENGTH
    assert sum(column) / len(column) == pytest.approx(found.rank.mean["checkpoint_ns"], rel=0.1)
    assert len(found.timeline.first_step) == 200


def test_the_timeline_covers_all_steps_in_order():
    timeline = analyze(steps({"checkpoint_ns": i} for i in range(450))).timeline
    assert timeline.first_step[0] == 0
    assert all(a < b for a, b in itertools.pairwise(timeline.first_step))
    assert len(timeline.first_step) <= 200
    assert tuple(timeline.phase_ns) == PHASES
    assert all(len(column) == len(timeline.first_step) for column in timeline.phase_ns.values())


def test_a_backward_anchor_is_named_and_said():
    rows = Rows()
    for _ in range(30):
        rows.backward()
    found = analyze(rows)
    assert found.rank.anchor == "backward"
    assert any("no optimizer" in message for message in messages(found))


def test_of_several_optimizers_the_report_says_which_closes_the_step():
    rows = Rows()
    for _ in range(30):
        rows.step(optimizer=0)
        rows.step(optimizer=1)
    found = analyze(rows, {"kind": "optimizer", "index": 1, "class": "RMSprop", "where": ["/x/gan.py", 8, "main"]})
    assert found.rank.anchor == "RMSprop"
    assert messages(found) == [
        "2 optimizers are used: a training step ends with optimizer 2, RMSprop (gan.py:8), which steps most regularly"
    ]
