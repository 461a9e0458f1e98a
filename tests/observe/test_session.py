"""What the session keeps in every step and what only when it is due, on wrappers around plain functions."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hotloop.core.recording import FIELD, TIME_FIELDS
from hotloop.observe import background, wrappers
from hotloop.observe.background import (
    FAST_INTERVAL_S,
    IDLE_INTERVAL_S,
    SLOW_INTERVAL_S,
    TARGET_CPU_RATIO,
    Background,
    next_interval_s,
)
from hotloop.observe.loaders import TIMED_FETCHES
from hotloop.observe.overhead import IN_PLACE_RATIO, hook_costs_ns
from hotloop.observe.recorder import COUNTED
from hotloop.observe.session import LEARNING_ROWS, LOOK_ROWS, MATCHED_ROWS, Session


class Training:
    """A loop on hooks of its own: nothing of torch is patched."""

    def __init__(self) -> None:
        self.session = session = Session({"run": ""})
        self.rows: list[list[int]] = []
        session.recorder.on_start = lambda: lambda row: self.rows.append(list(row))
        self.loader = DataLoader(TensorDataset(torch.arange(1600.0).reshape(800, 2)), batch_size=4)
        self.model, self.criterion = nn.Linear(2, 1), nn.MSELoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)
        self.begin = wrappers.wrap_loader_iter(session)(type(self.loader).__iter__)
        self.advance = wrappers.wrap_loader_next(session)(lambda iterator: next(iterator))
        self.call = wrappers.wrap_module_call(session)(lambda module, *values: nn.Module.__call__(module, *values))
        self.run_backward = wrappers.wrap_run_backward(session)(lambda outputs, *rest: outputs.backward())
        self.optimize = wrappers.wrap_optimizer_step(session)(lambda optimizer: optimizer.step())
        self.iterator = self.begin(self.loader)

    def step(self) -> Any:
        (x,) = self.advance(self.iterator)
        self.optimizer.zero_grad()
        self.run_backward(self.call(self.criterion, self.call(self.model, x), x[:, :1]))
        self.optimize(self.optimizer)
        return x

    def use(self, optimizer: torch.optim.Optimizer) -> None:
        """The same optimizer to the hooks, with another form of its step."""
        self.optimizer.param_groups, self.optimizer.defaults = optimizer.param_groups, optimizer.defaults

    def column(self, name: str) -> list[int]:
        return [row[FIELD[name]] for row in self.rows]


@pytest.fixture
def training() -> Training:
    """After its first step, which is two rows: until an optimizer was seen a backward closes one."""
    training = Training()
    training.step()
    training.rows.clear()
    return training


def test_every_row_counts_its_calls(training: Training) -> None:
    for _ in range(90):
        training.step()
    assert training.column("index") == list(range(2, 92))
    for name, count in {"batches": 1, "forwards": 2, "backwards": 1, "samples": 4, "micro_batches": 1}.items():
        assert set(training.column(name)) == {count}, name
    counts = training.session.call_counts()
    assert set(counts) == set(COUNTED)
    assert counts["batches"] == 91
    assert counts["forwards"] == pytest.approx(182, rel=0.1)
    assert counts["backwards"] == pytest.approx(91, rel=0.1)


def test_after_the_first_rows_little_is_looked_at(training: Training) -> None:
    looked_at: list[int] = []
    after_row = training.session.recorder.on_row
    assert after_row is not None

    def note(row: Any) -> None:
        looked_at.append(row[0] + 1)
        after_row(row)

    training.session.recorder.on_row = note
    for _ in range(3 * LOOK_ROWS - 2):
        training.step()
    due = [*range(3, LEARNING_ROWS + 1), 16, 32, 48]
    assert looked_at == due
    training.session.subscribe(lambda session, row: None)
    for _ in range(4):
        training.step()
    assert looked_at == [*due, 49, 50, 51, 52]


def test_the_loss_is_not_taken_for_the_model(training: Training) -> None:
    described = [fact for fact in training.session._pending_facts if fact["kind"] == "model"]
    assert [(fact["class"], fact["parameters"]) for fact in described] == [("Linear", 3)]


def test_metrics_on_the_same_batch_are_found_whenever_they_begin(training: Training) -> None:
    for _ in range(2 * MATCHED_ROWS):
        training.step()
    training.rows.clear()
    assert not training.session.matching_inputs
    for _ in range(5):
        x = training.step()
        with torch.no_grad():
            training.call(training.model, x)
    training.step()
    repeated = training.column("repeated_forwards")
    assert repeated == [0, 0, 1, 1, 1, 1]  # the first forward without gradients is in row 1, and only it is missed


def test_metrics_from_a_second_forward_with_gradients_are_found(training: Training) -> None:
    for _ in range(2 * MATCHED_ROWS):
        (x,) = training.advance(training.iterator)
        out = training.call(training.model, x)
        training.call(training.model, x)
        training.run_backward(training.call(training.criterion, out, x[:, :1]))
        training.optimize(training.optimizer)
    assert training.column("repeated_forwards") == [1] * 2 * MATCHED_ROWS


@pytest.mark.parametrize(("rate", "both_go_back", "repeats"), [(0.5, True, 0), (0.5, False, 1), (0.0, True, 1)])
def test_two_passes_that_draw_random_numbers_and_both_go_backward_repeat_nothing(
    training: Training, rate: float, both_go_back: bool, repeats: int
) -> None:
    model = nn.Sequential(training.model, nn.Dropout(rate))
    for _ in range(4):
        (x,) = training.advance(training.iterator)
        first, second = training.call(model, x), training.call(model, x)
        training.run_backward((first * second if both_go_back else first).sum())
        training.optimize(training.optimizer)
    assert training.column("repeated_forwards") == [repeats] * 4
    assert all((span > 0) == bool(repeats) for span in training.column("repeated_forward_ns"))


def test_a_repeat_that_goes_backward_too_is_told_from_one_for_metrics(training: Training) -> None:
    training.rows.clear()
    for both in (True, False):
        (x,) = training.advance(training.iterator)
        first, second = training.call(training.model, x), training.call(training.model, x)
        training.run_backward((first * second if both else first).sum())
        training.optimize(training.optimizer)
    assert training.column("repeated_forwards") == [1, 1]
    assert training.column("repeated_backwards") == [1, 0]
    assert training.column("repeated_nograd_forwards") == [0, 0]


def test_a_teacher_is_no_repeat_without_gradients(training: Training) -> None:
    teacher = nn.Linear(2, 1)
    for metrics in (False, True):
        training.step()
        training.rows.clear()
        for _ in range(3):
            (x,) = training.advance(training.iterator)
            with torch.no_grad():
                training.call(teacher, x)
            out = training.call(training.model, x)
            if metrics:
                with torch.no_grad():
                    training.call(training.model, x)
            training.run_backward(training.call(training.criterion, out, x[:, :1]))
            training.optimize(training.optimizer)
        assert training.column("repeated_nograd_forwards") == [int(metrics)] * 3


def test_pictures_of_different_sizes_are_counted_by_the_list_they_come_in() -> None:
    training = Training()
    pictures = [torch.zeros(3, 5 + i % 3, 7) for i in range(22)]
    labels = torch.arange(22)
    training.loader = DataLoader(
        list(zip(pictures, labels, strict=True)),  # type: ignore[arg-type]
        batch_size=4,
        collate_fn=lambda samples: tuple(zip(*samples, strict=True)),
    )
    training.iterator = training.begin(training.loader)
    for _ in range(6):
        images, _ = training.advance(training.iterator)
        x = torch.stack([image.mean((1, 2))[:2] for image in images])
        training.run_backward(training.call(training.model, x).sum())
        training.optimize(training.optimizer)
    assert training.column("samples")[-5:] == [4, 4, 4, 4, 2]


@pytest.mark.parametrize("fused", [False, True])
def test_metrics_after_the_optimizer_s_step_are_found_with_gradients_too(training: Training, fused: bool) -> None:
    training.use(torch.optim.SGD(training.model.parameters(), lr=1e-6, fused=fused))
    for _ in range(5):
        x = training.step()
        training.call(training.model, x)
    training.step()
    repeated, spans = training.column("repeated_forwards"), training.column("repeated_forward_ns")
    assert repeated == [0, 1, 1, 1, 1, 1]
    assert all(0 < span <= forward for span, forward in zip(spans[1:], training.column("forward_ns")[1:], strict=True))


@pytest.mark.parametrize("fused", [False, True])
def test_several_steps_on_one_batch_are_no_metrics(training: Training, fused: bool) -> None:
    training.use(torch.optim.SGD(training.model.parameters(), lr=1e-6, fused=fused))
    for i in range(12):
        if i % 4 == 0:
            (x,) = training.advance(training.iterator)
        training.run_backward(training.call(training.model, x).sum())
        training.optimize(training.optimizer)
    assert training.column("repeated_forwards") == [0] * 12


def test_a_forward_with_other_weights_inputs_or_mode_repeats_nothing(training: Training) -> None:
    model, state = training.model, torch.zeros(4, 1)
    for i in range(4):
        (x,) = training.advance(training.iterator)
        out = training.call(model, x)
        training.run_backward(training.call(training.criterion, out, x[:, :1]))
        with torch.no_grad():
            model.weight.mul_(0.99)  # as a search along a line, or sharpness-aware minimisation
        training.run_backward(training.call(training.criterion, training.call(model, x), x[:, :1]))
        if i == 2:
            x.mul_(0.5)
        if i == 3:
            model.eval()
        training.call(model, x) if i > 1 else None
        training.optimize(training.optimizer)
    cell = nn.Bilinear(2, 1, 1)
    for hidden in (state, state + 1.0):
        training.call(cell, x, hidden)
    training.optimize(training.optimizer)
    assert training.column("repeated_forwards") == [0] * 5


def test_a_generator_asked_again_for_the_same_noise_is_found_behind_another_optimizer(training: Training) -> None:
    other = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    for _ in range(4):
        (x,) = training.advance(training.iterator)
        training.run_backward(training.call(training.criterion, training.call(training.model, x), x[:, :1]))
        training.optimize(other)
        training.run_backward(training.call(training.criterion, training.call(training.model, x), x[:, :1]))
        training.optimize(training.optimizer)
    assert training.column("repeated_forwards") == [0, 1] * 4


def test_a_second_loader_that_is_read_beside_the_first_is_not_validated_on(training: Training) -> None:
    unlabelled = DataLoader(TensorDataset(torch.ones(40, 2)), batch_size=4)
    teacher = nn.Linear(2, 1)

    def validate(iterator: Any) -> None:
        with torch.no_grad():
            training.call(teacher, training.advance(iterator)[0])

    beside, rarely = training.begin(unlabelled), training.begin(unlabelled)
    for i in range(6):
        training.advance(beside)
        (x,) = training.advance(training.iterator)
        with torch.no_grad():
            target = training.call(teacher, x)
        training.run_backward(training.call(training.criterion, training.call(training.model, x), target))
        training.optimize(training.optimizer)
        if i % 3 == 2:
            validate(rarely)
    training.step()
    assert training.column("bursts") == [1] * 7
    assert training.column("bursts_other_loader") == [0, 0, 0, 1, 0, 0, 1]


def test_a_tensor_that_every_step_trains_on_is_told(training: Training) -> None:
    x = torch.ones(4, 2)
    for _ in range(3):
        training.run_backward(training.call(training.model, x).sum())
        training.optimize(training.optimizer)
    assert {"kind": "direct_input", "stays": True} in training.session.totals()


def test_batches_that_change_are_not_said_to_stay(training: Training) -> None:
    for i in range(3):
        training.run_backward(training.call(training.model, torch.full((4, 2), float(i))).sum())
        training.optimize(training.optimizer)
    assert [fact for fact in training.session.totals() if fact["kind"] == "direct_input"] == []


def test_a_failure_in_every_step_is_counted_and_harms_nothing(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hotloop.observe import session
    from hotloop.observe.counting import Counting
    from hotloop.observe.guard import GUARD

    def broken(*args: Any) -> Any:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(GUARD, "failures", {})
    monkeypatch.setattr(Counting, "settle_samples", broken)
    for state in training.session.loading.states.values():
        state.whole_batch = 0
    monkeypatch.setattr(session.Session, "_record_root", broken)
    monkeypatch.setattr(session.Session, "_meet", broken)
    training.session.learners.clear()
    for _ in range(6):
        training.step()
    assert training.column("forwards") == [2] * 6
    assert GUARD.failures["Loaders.after_batch: ZeroDivisionError: planted"] == 6
    assert GUARD.failures["Session.before_forward: ZeroDivisionError: planted"] == 6


def test_batches_fetched_here_are_timed_less_often_after_the_first(training: Training) -> None:
    collate = training.loader.collate_fn

    class Fetcher:
        collate_fn = staticmethod(collate)

    fetcher: Any = Fetcher()
    fetch = wrappers.wrap_fetcher_fetch(training.session)(lambda fetcher, samples: fetcher.collate_fn(samples))

    def fetch_many(count: int, apart_ns: int = 0) -> int:
        before = training.session.recorder.row[FIELD["fetch_batches"]]
        for _ in range(count):
            training.session.recorder.last_ns += apart_ns
            assert len(fetch(fetcher, [(torch.zeros(2),)] * 4)[0]) == 4
            assert fetcher.collate_fn is collate
        return int(training.session.recorder.row[FIELD["fetch_batches"]] - before)

    assert fetch_many(TIMED_FETCHES) == TIMED_FETCHES
    assert 60 <= fetch_many(260) <= 68
    fetch_many(200)
    assert 48 <= fetch_many(6100) <= 53  # batches without any time between them
    fetch_many(100, apart_ns=40_000_000)
    assert 24 <= fetch_many(100, apart_ns=40_000_000) <= 26
    state = training.session.loading._fetch_state
    assert state is not None
    taken = TIMED_FETCHES + 6760
    assert taken - 200 <= state.main.batches <= taken  # the totals cover all
    with pytest.raises(TypeError):
        wrappers.wrap_fetcher_fetch(training.session)(lambda fetcher, index: fetcher.collate_fn(1, 2))(fetcher, 0)
    assert fetcher.collate_fn is collate


def test_a_session_that_is_off_lets_everything_pass(training: Training) -> None:
    training.session.off = True
    for _ in range(3):
        training.step()
    assert training.rows == []
    assert training.session.owner == threading.get_ident()
    training.session.off = False
    training.step()
    assert len(training.rows) == 1


def test_the_costs_of_hooks_are_found_without_a_failure(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    from hotloop.observe.guard import GUARD

    monkeypatch.setattr(GUARD, "failures", {})
    costs_ns = hook_costs_ns(training.session)
    assert GUARD.failures == {}
    assert set(costs_ns) == {*COUNTED, "rows", "nested"}
    assert 0 < costs_ns["rows"] < 1e7


def test_the_sampler_slows_down_as_far_as_its_cost_asks() -> None:
    assert next_interval_s(FAST_INTERVAL_S, 0.1 * TARGET_CPU_RATIO, 1.0) == FAST_INTERVAL_S
    assert next_interval_s(FAST_INTERVAL_S, 2 * TARGET_CPU_RATIO, 1.0) == pytest.approx(2 * FAST_INTERVAL_S)
    assert next_interval_s(0.04, 0.5 * TARGET_CPU_RATIO, 1.0) == pytest.approx(FAST_INTERVAL_S)
    assert next_interval_s(FAST_INTERVAL_S, 1.0, 1.0) == SLOW_INTERVAL_S
    ages = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
    intervals = [next_interval_s(FAST_INTERVAL_S, 0.1 * TARGET_CPU_RATIO, age_s) for age_s in ages]
    assert intervals == sorted(intervals)
    assert intervals[-1] == IDLE_INTERVAL_S


def test_the_sampler_wakes_before_fast_steps_have_filled_what_is_ready_of_the_file() -> None:
    asleep_s = [next_interval_s(IDLE_INTERVAL_S, 1.0, 99.0, rows_per_s) for rows_per_s in (100.0, 1_000.0, 1e6)]
    assert asleep_s == [IDLE_INTERVAL_S, pytest.approx(0.4), pytest.approx(0.2)]


@pytest.mark.parametrize(
    ("overslept_ns", "run_delay_ns", "threads", "late", "taken"),
    [
        (50_000, 0, 2, 0, 0),
        (3_000_000, 0, 2, 1, 0),  # the lock was given away here
        (3_000_000, 2_900_000, 2, 0, 0),  # there was no core: says nothing of the lock
        (6_000_000, 0, 2, 0, 1),  # the lock was taken away here
        (6_000_000, 2_000_000, 2, 1, 0),
        (6_000_000, 0, 3, 0, 0),  # another thread may have had it
    ],
)
def test_a_sample_says_whether_it_waited_for_the_lock(
    training: Training,
    monkeypatch: pytest.MonkeyPatch,
    overslept_ns: int,
    run_delay_ns: int,
    threads: int,
    late: int,
    taken: int,
) -> None:
    frame = sys._getframe()
    frames = {training.session.owner: frame, **{-number: frame for number in range(1, threads)}}
    monkeypatch.setattr(sys, "_current_frames", lambda: frames)
    monkeypatch.setattr(sys, "getswitchinterval", lambda: 0.005)
    monkeypatch.setattr(background, "run_delay_ns", lambda: run_delay_ns)
    sampler = Background(training.session, None)  # type: ignore[arg-type]
    sampler._sample(overslept_ns)
    assert list(sampler._counts.values()) == [[1, late, taken]]


def test_the_thread_samples_tells_memory_and_stops_at_once(training: Training) -> None:
    class Writer:
        maintained = 0

        def maintain(self) -> None:
            Writer.maintained += 1

    told: list[dict[str, Any]] = []
    session: Any = training.session
    session.record = told.append
    sampler = Background(session, Writer())  # type: ignore[arg-type]
    sampler.start()
    deadline = threading.Event()
    for _ in range(200):
        training.step() if len(training.rows) < 90 else None
        deadline.wait(0.01)
        if any(fact["kind"] == "memory" for fact in told) and sum(n[0] for n in sampler._counts.values()) > 3:
            break
    sampler.stop()
    assert not sampler._thread.is_alive()
    sampler.stop()  # a second time is harmless
    sampler.write_samples()
    samples = [fact for fact in told if fact["kind"] == "samples" and fact["counts"]]
    assert any(
        place[0] == os.path.abspath(__file__)
        for fact in samples
        for _, stack, _, _ in fact["counts"]
        for place in stack
    )
    assert Writer.maintained > 0
    if os.path.exists("/proc/self/statm"):
        assert training.session.recorder.row[FIELD["rss_bytes"]] > 10 << 20


@pytest.mark.skipif(sys.version_info < (3, 11) or sys.platform != "linux", reason="stacks are read from outside there")
def test_the_agent_samples_until_its_offer_is_taken(training: Training, tmp_path: Path) -> None:
    class Writer:
        path = str(tmp_path / "host-1-0-0.hlr")

        def maintain(self) -> None:
            return None

    session: Any = training.session
    session.options["outside"] = True
    sampler = Background(session, Writer())  # type: ignore[arg-type]
    offer = tmp_path / "host-1-0-0.access"
    sampler._offer_stacks()
    sampler.keep_file()
    assert offer.exists()
    assert not sampler._is_read_outside
    offer.unlink()
    sampler.keep_file()
    assert sampler._is_read_outside


def test_without_anybody_to_read_its_stack_the_agent_says_so(training: Training) -> None:
    told: list[dict[str, Any]] = []
    training.session.record = told.append  # type: ignore[method-assign]
    sampler = Background(training.session, None)  # type: ignore[arg-type]
    sampler._offer_stacks()
    assert told == [{"kind": "sampling", "reason": "no `hotloop run` is waiting for it"}]


def test_the_cost_line_is_corrected_by_what_was_measured() -> None:
    results = Path(__file__).parents[2] / "benchmarks" / "results" / "overhead.json"
    measured = json.loads(results.read_text())["blocks"]["mlp"]["in_place_ratio"]
    assert pytest.approx(measured, abs=0.05) == IN_PLACE_RATIO


def test_memory_is_read_often_enough_in_a_run_of_two_seconds_to_fit_a_slope() -> None:
    from hotloop.diagnose.rules.memory_growth import FEWEST_READINGS_COUNT
    from hotloop.observe.background import _JOBS_NS

    assert 1.5e9 / _JOBS_NS["read_memory"][0] > 4 * FEWEST_READINGS_COUNT


class Spectrum(nn.Module):
    """Features without weights, from a module inside a module."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Tanh()

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale(x)  # type: ignore[no-any-return]


class Hidden(nn.Module):
    """A teacher whose weights are kept from registering."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = [nn.Linear(2, 2)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kept[0](x)  # type: ignore[no-any-return]


class Unregistered(nn.Module):
    """A model whose weights are plain tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.ones(2, 2, requires_grad=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def steps_with(training: Training, module: nn.Module, *, grad: bool) -> None:
    """Two steps in which the module gets the batch ahead of the model; the second alone is kept."""
    for _ in range(2):
        training.rows.clear()
        (x,) = training.advance(training.iterator)
        with torch.set_grad_enabled(grad):
            given = training.call(module, x)
        training.run_backward(training.call(training.criterion, training.call(training.model, given), x[:, :1]))
        training.optimize(training.optimizer)


@pytest.mark.parametrize("grad", [True, False])
def test_a_module_without_weights_ahead_of_the_model_belongs_to_the_loop(training: Training, grad: bool) -> None:
    steps_with(training, Spectrum(), grad=grad)
    assert training.column("forwards") == [2]  # the model and the criterion
    assert training.column("nograd_forwards") == [0]
    assert training.column("nograd_ns") == [0]
    assert training.column("after_input_ns")[0] > 0
    assert not training.session.preparing


def test_a_teacher_that_hides_its_weights_stays_a_forward(training: Training) -> None:
    steps_with(training, Hidden(), grad=False)
    assert training.column("nograd_forwards") == [1]


def test_a_model_with_unregistered_weights_stays_a_forward(training: Training) -> None:
    steps_with(training, Unregistered(), grad=True)
    assert training.column("forwards") == [3]


def test_a_module_that_fails_while_it_prepares_leaves_the_phases_in_order(training: Training) -> None:
    class Failing(Spectrum):
        fails = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.fails:
                raise ValueError("bad clip")
            return x

    module = Failing()
    steps_with(training, module, grad=True)
    module.fails = True
    with pytest.raises(ValueError, match="bad clip"):
        steps_with(training, module, grad=True)
    training.rows.clear()
    training.step()
    assert training.column("forwards") == [2]


def conserves_time(rows: list[list[int]]) -> bool:
    return all(
        sum(row[FIELD[name]] for name in TIME_FIELDS) == row[FIELD["end_ns"]] - row[FIELD["start_ns"]] for row in rows
    ) and all(a[FIELD["end_ns"]] == b[FIELD["start_ns"]] for a, b in itertools.pairwise(rows))


def test_hooks_that_charge_the_phases_themselves_conserve_time_whatever_is_raised(training: Training) -> None:
    recorder = training.session.recorder
    for _ in range(2 * MATCHED_ROWS):
        training.step()
    assert recorder.quick
    assert training.session.plain_forwards
    broken = wrappers.wrap_module_call(training.session)(_raise)
    broken_backward = wrappers.wrap_run_backward(training.session)(_raise)
    broken_step = wrappers.wrap_optimizer_step(training.session)(_raise)
    broken_next = wrappers.wrap_loader_next(training.session)(_raise)
    training.rows.clear()
    for _ in range(4):
        (x,) = training.advance(training.iterator)
        for fails in (
            lambda x=x: broken(training.model, x),
            lambda: broken_backward(torch.zeros(())),
            lambda: broken_step(training.optimizer),
            lambda: broken_next(training.iterator),
        ):
            with pytest.raises(ZeroDivisionError):
                fails()
            assert len(recorder.stack) == 1
        training.step()
    assert recorder.quick
    assert conserves_time(training.rows)
    assert training.column("batches") == [2] * 4
    assert training.column("forwards") == [2] * 4
    assert training.column("backwards") == [1] * 4
    assert all(
        training.column(name)[k] > 0 for name in ("input_wait_ns", "forward_ns", "backward_ns") for k in range(4)
    )


def test_validation_between_quick_rows_is_not_lost(training: Training) -> None:
    recorder = training.session.recorder
    for _ in range(2 * MATCHED_ROWS):
        training.step()
    training.rows.clear()
    held_out = DataLoader(TensorDataset(torch.randn(12, 2)), batch_size=4)
    for row in range(40):
        if row % 10 == 5:
            training.model.eval()
            with torch.no_grad():
                for (x,) in wrapped(training, held_out):
                    training.call(training.model, x)
            training.model.train()
            assert not recorder.quick
        training.step()
    assert conserves_time(training.rows)
    assert [k for k, n in enumerate(training.column("nograd_forwards")) if n] == [5, 15, 25, 35]
    assert sum(training.column("nograd_forwards")) == 12
    assert training.column("bursts") == [int(k % 10 == 5) for k in range(40)]
    assert training.column("forwards") == [2] * 40
    assert training.column("micro_batches") == [1] * 40
    for _ in range(LOOK_ROWS):
        training.step()
    assert recorder.quick


def test_another_thread_s_calls_do_not_touch_the_quick_hooks(training: Training) -> None:
    for _ in range(2 * MATCHED_ROWS):
        training.step()
    training.rows.clear()
    other = nn.Linear(2, 1)

    def work() -> None:
        for _ in range(20):
            training.call(other, torch.zeros(1, 2)).sum().backward()

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(5):
        training.step()
    thread.join()
    training.step()
    assert training.column("forwards") == [2] * 6
    assert conserves_time(training.rows)


def test_the_cpu_time_of_short_rows_is_read_now_and_then_and_never_lost(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = training.session.recorder
    monkeypatch.setattr("hotloop.observe.session.CPU_MASKS", ((1 << 60, 7),))
    for _ in range(2 * MATCHED_ROWS):
        training.step()
    while recorder.rows % 8 != 1:
        training.step()
    training.rows.clear()
    reading = itertools.count(recorder._cpu_last_ns + 1_000, 1_000)
    monkeypatch.setattr(recorder, "_cpu_clock", lambda: next(reading))
    for _ in range(24):
        training.step()
    assert training.column("cpu_ns") == [1_000 if index % 8 == 0 else 0 for index in training.column("index")]


def test_the_cpu_time_of_the_shortest_rows_is_read_least(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    masks = []
    for shortest_ns in (0, 1 << 60):
        monkeypatch.setattr("hotloop.observe.session.CPU_MASKS", ((shortest_ns, 31), (1 << 60, 7)))
        for _ in range(20):
            training.step()
        masks.append(training.session.recorder.cpu_mask)
    assert masks == [7, 31]


def _raise(*args: Any, **kwargs: Any) -> Any:
    raise ZeroDivisionError("planted")


def wrapped(training: Training, loader: Any) -> Any:
    """The batches of a loader through the hooks."""
    iterator = training.begin(loader)
    while True:
        try:
            yield training.advance(iterator)
        except StopIteration:
            return
