import itertools
import time

import numpy as np
import pytest

from hotloop.analyze.process import MAX_COLUMN_LENGTH, analyze_process
from hotloop.core.phases import PHASES
from hotloop.core.recording import FIELD, FLAG_DEEP, STEP_FIELDS
from hotloop.core.report import DevicePhase

from .synthetic import MS, FakeRecording, Rows, process_fact, recording


def plain(count: int = 100, **fields: int) -> Rows:
    rows = Rows()
    for _ in range(count):
        rows.step(**fields)
    return rows


def test_a_plain_training_is_described():
    optimizer = {"kind": "optimizer", "index": 0, "class": "AdamW", "where": ["t.py", 5, "main"]}
    found = analyze_process(recording(plain(), optimizer, {"kind": "end", "ended": "completed"}))
    assert found is not None
    rank = found.rank
    assert (rank.rank, rank.steps, rank.steady_count, rank.anchor) == (0, 100, 99, "AdamW")
    assert (rank.step_mean_ns, rank.step_median_ns) == (10 * MS, 10 * MS)
    assert {name: rank.breakdown.share(name) for name in ("input_wait", "forward", "backward", "optimizer")} == (
        pytest.approx({"input_wait": 0.1, "forward": 0.3, "backward": 0.5, "optimizer": 0.1})
    )
    assert (rank.samples_per_step, rank.tokens_per_step, found.ended) == (16.0, None, "completed")
    assert found.time_to_first_step_ns == 2_010 * MS
    assert found.health == ()


def test_a_process_without_steps_trained_nothing():
    assert analyze_process(recording(Rows())) is None
    rows = Rows()
    rows.end(other_ns=MS)
    assert analyze_process(recording(rows)) is None


def test_accumulated_micro_batches_are_counted_per_step():
    found = analyze_process(recording(plain(50, micro_batches=4, batches=4, backwards=4, samples=64)))
    assert found is not None
    assert (found.batches_per_step, found.rank.samples_per_step) == (4.0, 64.0)


def test_a_run_of_one_step_is_described_with_a_warning():
    found = analyze_process(recording(plain(1)))
    assert found is not None
    assert (found.rank.steady_count, found.rank.step_mean_ns, found.rank.step_noise_ratio) == (1, 10 * MS, 1.0)
    assert found.step_cv_ratio is None
    assert found.rank.memory_growth_bytes_per_step is None
    assert [h.level for h in found.health] == ["warning"]


def test_an_unknown_field_has_an_unknown_mean():
    found = analyze_process(recording(plain()))
    assert found is not None
    assert found.rank.mean["tokens"] == -1.0
    assert found.rank.mean["device_forward_ns"] == -1.0


def test_the_mean_of_a_sampled_field_is_over_the_steps_that_know_it():
    rows = Rows()
    for i in range(100):
        rows.step(recompute_ns=10 if i % 10 == 5 else -1)
    found = analyze_process(recording(rows))
    assert found is not None
    assert found.rank.mean["recompute_ns"] == 10.0


def test_device_time_stands_beside_the_host_time_of_the_same_steps():
    rows = Rows()
    for i in range(100):
        timed = {"device_forward_ns": 40 * MS, "device_h2d_ns": 0, "forward_ns": 4 * MS} if i % 10 == 5 else {}
        rows.step(**timed)
    found = analyze_process(recording(rows))
    assert found is not None
    assert found.device_phases == (
        DevicePhase(phase="forward", device_mean_ns=40 * MS, host_mean_ns=4 * MS, steps_count=10),
    )
    assert found.rank.mean["device_forward_ns"] == 40 * MS
    assert sorted(set(found.rank.columns["device_forward_ns"])) == [-1, 40 * MS]


def test_a_training_that_was_never_timed_on_a_device_has_no_device_time():
    found = analyze_process(recording(plain()))
    assert found is not None
    assert found.device_phases == ()


def test_a_step_of_two_rows_has_a_device_time_only_when_both_rows_have_one():
    rows = Rows()
    for i in range(50):
        rows.step(optimizer=0, device_backward_ns=7 * MS)
        rows.step(optimizer=1, device_backward_ns=5 * MS if i % 2 else -1)
    found = analyze_process(recording(rows))
    assert found is not None
    (backward,) = found.device_phases
    assert (backward.phase, backward.device_mean_ns, backward.steps_count) == ("backward", 12 * MS, 25)


def graph_replays(tail: dict[str, int]) -> list[str]:
    """Health of a process whose four steps are followed by ``tail``."""
    rows = Rows()
    for _ in range(4):
        rows.step()
    rows.end(**tail)
    found = analyze_process(recording(rows, accelerator="cuda"))
    assert found is not None
    return [h.message for h in found.health if "CUDA graph" in h.message]


def test_steps_that_replay_a_graph_are_missed_aloud():
    (message,) = graph_replays({"other_ns": 9_000 * MS, "input_wait_ns": 960 * MS})
    assert message == (
        "the figures cover the first 0.04 s of 10 s recorded; after that, neither a backward nor an optimizer step was "
        "observed (steps that replay a CUDA graph cannot be observed)"
    )


def test_an_evaluation_after_the_last_step_is_no_replay():
    assert graph_replays({"nograd_ns": 9_000 * MS, "input_wait_ns": 960 * MS}) == []
    assert graph_replays({"other_ns": 20 * MS}) == []


def test_a_long_end_of_a_training_on_the_cpu_is_no_replay():
    rows = plain(4)
    rows.end(other_ns=9_000 * MS)
    found = analyze_process(recording(rows))
    assert found is not None
    assert [h.message for h in found.health if "graph" in h.message] == []


@pytest.mark.parametrize(("count", "text"), [(1, "1 step was left out"), (2, "2 steps were left out")])
def test_one_step_that_was_left_out_is_one_step(count, text):
    rows = plain(30)
    for _ in range(count):
        rows.step(flags=FLAG_DEEP)
    for _ in range(30):
        rows.step()
    found = analyze_process(recording(rows))
    assert found is not None
    assert [h.message for h in found.health] == [f"{text}: a profiler was running, or hotloop recorded operators"]


def test_tokens_of_a_step_follow_from_the_sampled_rows():
    rows = Rows()
    for i in range(160):
        sampled = {"tokens": 1200, "padding_tokens": 400, "longest_tokens": 1500} if i % 16 == 0 else {}
        rows.step(samples=16, **sampled)
    found = analyze_process(recording(rows))
    assert found is not None
    assert found.rank.tokens_per_step == 1200.0
    assert found.rank.padding_ratio == 0.25
    assert found.rank.padding_to_longest_ratio == pytest.approx(0.2)


def test_tokens_of_a_pair_of_optimizers_are_not_counted_twice():
    rows = Rows()
    for i in range(100):
        rows.step(optimizer=0, samples=8, **({"tokens": 80} if i % 10 == 0 else {}))
        rows.step(optimizer=1, samples=0, batches=0, micro_batches=0)
    found = analyze_process(recording(rows))
    assert found is not None
    assert (found.rank.steps, found.rank.samples_per_step, found.rank.tokens_per_step) == (100, 8.0, 80.0)


def test_a_batch_that_both_optimizers_work_on_counts_once():
    rows = Rows()
    for _ in range(50):
        rows.step(optimizer=0, samples=16)
        rows.step(optimizer=1, samples=16, batches=0, micro_batches=0)
    found = analyze_process(recording(rows))
    assert found is not None
    assert found.rank.samples_per_step == 16.0


def test_samples_without_a_loader_are_unknown_where_optimizers_step_by_turns():
    """A GAN's two backwards, or an actor's and its critic's, learn from the same batch as likely as not."""
    rows = Rows()
    for _ in range(50):
        rows.step(optimizer=0, samples=16, batches=0, micro_batches=0)
        rows.step(optimizer=1, samples=8, batches=0, micro_batches=0)
    found = analyze_process(recording(rows))
    assert found is not None
    assert (found.rank.samples_per_step, found.batches_per_step) == (None, None)


def test_samples_without_a_loader_are_known_where_all_optimizers_step_after_one_backward():
    rows = Rows()
    for _ in range(50):
        rows.step(optimizer=0, samples=16, batches=0, micro_batches=0)
        rows.step(optimizer=1, samples=0, batches=0, micro_batches=0, backwards=0)
    found = analyze_process(recording(rows))
    assert found is not None
    assert found.rank.samples_per_step == 16.0


def test_samples_of_one_of_two_loaders_are_not_those_of_the_step():
    rows = Rows()
    for _ in range(60):
        rows.step(samples=16, batches=2, micro_batches=1)
    found = analyze_process(recording(rows))
    assert found is not None
    assert found.rank.samples_per_step is None


def test_batches_of_another_loader_in_some_steps_leave_the_samples_known():
    rows = Rows()
    for i in range(60):
        rows.step(samples=16, batches=1 + (i % 5 == 0), micro_batches=1)
    found = analyze_process(recording(rows))
    assert found is not None
    assert found.rank.samples_per_step == 16.0


def test_samples_that_most_steps_do_not_tell_are_unknown():
    rows = Rows()
    for i in range(60):
        rows.step(samples=16 if i % 3 == 0 else -1, batches=0, micro_batches=0)
    found = analyze_process(recording(rows))
    assert found is not None
    assert found.rank.samples_per_step is None


def test_samples_of_validation_are_not_trained_on():
    rows = Rows()
    for i in range(100):
        rows.step(**({"samples": 5000, "nograd_ns": MS, "bursts": 1, "bursts_other_loader": 1} if i % 20 == 9 else {}))
    found = analyze_process(recording(rows))
    assert found is not None
    assert (found.rank.samples_per_step, found.units.samples_vary) == (16.0, False)


def test_states_of_an_episode_are_no_samples():
    rows = Rows()
    for _ in range(50):
        rows.step(samples=1, batches=0, micro_batches=0, forwards=25)
    found = analyze_process(recording(rows))
    assert found is not None
    assert found.rank.samples_per_step is None


def test_samples_that_were_never_seen_are_unknown():
    found = analyze_process(recording(plain(30, samples=0)))
    assert found is not None
    assert found.rank.samples_per_step is None


def test_memory_of_a_cpu_training_is_resident_memory():
    rows = Rows()
    for i in range(100):
        rows.step(rss_bytes=(1 << 30) + i * 1_000_000)
    found = analyze_process(recording(rows, {"kind": "memory", "row": 50, "rss_bytes": 5, "peak_rss_bytes": 2 << 30}))
    assert found is not None
    assert found.memory.peak_bytes == 2 << 30
    assert found.memory.total_bytes == 1 << 34
    assert found.memory.peak_ratio == 0.125
    assert found.memory.allocated_bytes is None
    assert found.rank.memory_growth_bytes_per_step == pytest.approx(1e6)
    assert found.rank.memory_growth_noise_bytes_per_step == pytest.approx(0.0, abs=1e3)


def test_memory_of_an_accelerator_takes_its_place():
    device = {"allocated": 10, "reserved": 20, "peak": 40, "total": 80, "retries": 0}
    found = analyze_process(recording(plain(), {"kind": "memory", "row": 5, "rss_bytes": 7, "device": device}))
    assert found is not None
    memory = found.memory
    assert (memory.peak_bytes, memory.allocated_bytes, memory.reserved_bytes) == (40, 10, 20)
    assert (memory.total_bytes, memory.peak_ratio) == (80, 0.5)


def test_an_accelerator_that_was_never_used_hides_no_host_memory():
    device = {"allocated": 0, "reserved": 0, "peak": 0, "total": 80}
    found = analyze_process(recording(plain(), {"kind": "memory", "row": 5, "rss_bytes": 7, "device": device}))
    assert found is not None
    assert (found.memory.peak_bytes, found.memory.total_bytes) == (7, 1 << 34)


def test_the_model_lives_where_its_optimizer_works_when_it_does_not_say():
    optimizer = {"kind": "optimizer", "index": 0, "class": "SGD", "device": "cpu"}
    found = analyze_process(recording(plain(), optimizer, accelerator="cuda"))
    assert found is not None
    assert found.rank.device_type == "cpu"


def test_memory_that_was_never_read_is_unknown():
    found = analyze_process(recording(plain()))
    assert found is not None
    assert found.memory.peak_bytes is None
    assert found.memory.peak_ratio is None


def test_columns_hold_one_entry_a_steady_step():
    found = analyze_process(recording(plain(40)))
    assert found is not None
    assert set(found.rank.columns) == set(STEP_FIELDS)
    assert list(found.rank.columns["forward_ns"]) == [3 * MS] * 39
    assert list(found.rank.columns["index"]) == list(range(1, 40))


def test_columns_of_a_block_add_up_to_the_block():
    rows = plain(20)
    rows.step(rows_merged=7, iterators=3, forward_ns=100, tokens=-1)
    found = analyze_process(recording(rows))
    assert found is not None
    columns = found.rank.columns
    assert len(columns["iterators"]) == 26
    assert sum(columns["iterators"]) == 3
    assert sum(columns["forward_ns"][-7:]) == 100
    assert set(columns["tokens"]) == {-1}


def test_a_long_run_is_summarised_over_all_and_drawn_for_columns():
    rows = plain(2)
    base = rows.array()
    count = 250_000
    array = np.repeat(base[1:], count, axis=0)
    array[:, FIELD["index"]] = np.arange(count)
    array[::100, FIELD["checkpoint_ns"]] = 50 * MS
    spans = np.full(count, 10 * MS)
    spans[::100] += 50 * MS
    array[:, FIELD["end_ns"]] = np.cumsum(spans)
    array[:, FIELD["start_ns"]] = array[:, FIELD["end_ns"]] - spans
    found = analyze_process(FakeRecording(rows=array, process=process_fact()))
    assert found is not None
    assert found.rank.steps == count
    column = found.rank.columns["checkpoint_ns"]
    assert len(column) == MAX_COLUMN_LENGTH
    assert sum(column) / len(column) == pytest.approx(found.rank.mean["checkpoint_ns"], rel=0.1)
    assert len(found.timeline.first_step) == 200


def test_a_long_recording_takes_seconds_of_processor_time_not_minutes():
    rows = plain(2)
    array = np.repeat(rows.array()[1:], 200_000, axis=0)
    array[:, FIELD["index"]] = np.arange(len(array))
    start_s = time.process_time()
    found = analyze_process(FakeRecording(rows=array, process=process_fact()))
    assert found is not None
    assert time.process_time() - start_s < 6.0


def test_the_timeline_covers_all_steps_in_order():
    rows = Rows()
    for i in range(450):
        rows.step(checkpoint_ns=i)
    found = analyze_process(recording(rows))
    assert found is not None
    timeline = found.timeline
    assert timeline.first_step[0] == 0
    assert all(a < b for a, b in itertools.pairwise(timeline.first_step))
    assert len(timeline.first_step) <= 200
    assert tuple(timeline.phase_ns) == PHASES
    assert all(len(column) == len(timeline.first_step) for column in timeline.phase_ns.values())


def test_a_backward_anchor_is_named_and_said():
    rows = Rows()
    for _ in range(30):
        rows.backward()
    found = analyze_process(recording(rows))
    assert found is not None
    assert found.rank.anchor == "backward"
    assert any("no optimizer" in h.message for h in found.health)


def test_of_several_optimizers_the_report_says_which_closes_the_step():
    rows = Rows()
    for _ in range(30):
        rows.step(optimizer=0)
        rows.step(optimizer=1)
    optimizer = {"kind": "optimizer", "index": 1, "class": "RMSprop", "where": ["/x/gan.py", 8, "main"]}
    found = analyze_process(recording(rows, optimizer))
    assert found is not None
    assert found.rank.anchor == "RMSprop"
    assert [h.message for h in found.health] == [
        "2 optimizers are used: a training step ends with optimizer 2, RMSprop (gan.py:8), "
        "the one that steps most regularly"
    ]


def test_facts_of_any_junk_do_no_harm():
    junk = [
        {"kind": kind, "id": [], "row": "x", "device": 7, "counts": 5} for kind in ("memory", "samples", "ops", "end")
    ]
    found = analyze_process(FakeRecording(rows=plain().array(), process={"rank": "zero", "argv": 9}, facts=junk))
    assert found is not None
    assert (found.rank.rank, found.rank.world_size, found.argv, found.ended) == (None, 1, (), None)


def test_batches_fetched_ahead_do_not_count_again_as_inputs():
    rows = Rows()
    for i in range(96):  # of 32 steps an epoch the first takes two batches, the last none
        ahead = {0: {"samples": 32, "micro_batches": 2}, 31: {"batches": 0, "micro_batches": 0}}.get(i % 32, {})
        rows.step(**ahead)
    found = analyze_process(recording(rows))
    assert found is not None
    assert found.rank.samples_per_step == pytest.approx(16.0, rel=0.005)


def test_a_step_that_fetches_ahead_counts_all_its_batches_with_validation_in_it_too():
    rows = Rows()
    validation = {"nograd_ns": MS, "bursts": 1, "bursts_other_loader": 1}
    for i in range(96):
        ahead = {0: {"samples": 32, "micro_batches": 2, **validation}, 31: {"batches": 0, "micro_batches": 0}}
        rows.step(**ahead.get(i % 32, {}))
    found = analyze_process(recording(rows))
    assert found is not None
    assert found.rank.samples_per_step == pytest.approx(16.0, rel=0.005)
