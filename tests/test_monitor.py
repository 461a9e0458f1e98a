import doctest
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hotloop.monitor
from hotloop import Monitor
from hotloop.agent.observe.event_pool import EventPool
from hotloop.core.errors import UsageError

HERE = Path(__file__).parent
MS = 1_000_000


class FakeClock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def pass_ms(self, ms: float) -> None:
        self.now_ns += round(ms * MS)


def make(**options: Any) -> tuple[Monitor, FakeClock, list[str]]:
    clock, written = FakeClock(), []
    options = {"warmup_steps": 0, "device": "cpu", "read_memory": dict, **options}
    return Monitor(clock=clock, write=written.append, **options), clock, written


def spend(monitor: Monitor, clock: FakeClock, **phases_ms: float) -> None:
    """One step of phases; 'own' is time without a phase."""
    with monitor.step():
        for name, ms in phases_ms.items():
            if name == "own":
                clock.pass_ms(ms)
            else:
                with monitor.phase(name):
                    clock.pass_ms(ms)


def by_path(summary: Any) -> dict[tuple[str, ...], Any]:
    return {phase.path: phase for phase in summary.phases}


# -- accounting


TREES = st.recursive(
    st.integers(0, 50), lambda child: st.lists(st.tuples(st.sampled_from("abc"), child), max_size=3), max_leaves=12
)


@given(st.lists(TREES, min_size=1, max_size=4))
def test_children_and_own_time_are_the_parent_in_any_tree(steps: list[Any]):
    monitor, clock, _ = make()

    def run(tree: Any) -> None:
        if isinstance(tree, int):
            clock.now_ns += tree
            return
        for name, child in tree:
            clock.now_ns += 1
            with monitor.phase(name):
                run(child)

    for tree in steps:
        with monitor.step():
            run(tree)
    summary = monitor.summary()
    assert summary.step is not None
    whole = {(): summary.step, **by_path(summary)}
    for path, phase in whole.items():
        children = sum(p.time_ns.total for q, p in whole.items() if q and q[:-1] == path)
        assert phase.time_ns.total == children + round(phase.own_ns * summary.steps_count)


def test_a_phase_between_steps_belongs_to_the_step_that_follows():
    monitor, clock, _ = make()
    for _ in range(2):
        with monitor.phase("data"):
            clock.pass_ms(4)
        clock.pass_ms(100)  # neither in a step nor in a phase
        spend(monitor, clock, forward=6)
    summary = monitor.summary()
    assert summary.step is not None
    assert summary.step.time_ns.mean == 10 * MS
    assert by_path(summary)["data",].share_ratio == 0.4
    assert summary.step.own_ns == 0


def test_batches_times_the_wait_for_every_item():
    monitor, clock, _ = make()

    def source() -> Any:
        for i in range(3):
            clock.pass_ms(2)
            yield i

    seen = []
    for batch in monitor.batches(source()):
        with monitor.step():
            clock.pass_ms(6)
            seen.append(batch)
    assert seen == [0, 1, 2]
    assert by_path(monitor.summary())["data",].share_ratio == 0.25


def test_a_phase_that_is_rare_counts_as_zero_elsewhere():
    monitor, clock, _ = make()
    for i in range(100):
        spend(monitor, clock, forward=1, **({"save": 30} if i % 50 == 0 else {}))
    save = by_path(monitor.summary())["save",]
    stats = save.time_ns
    assert (stats.mean, stats.min, stats.p50, stats.max) == (0.6 * MS, 0, 0, 30 * MS)
    assert (save.calls_count, stats.count) == (2, 100)


def test_memory_stays_bounded_and_sums_exact_in_a_long_run():
    monitor, clock, _ = make()
    count = 10_000
    for i in range(count):
        with monitor.step():
            clock.now_ns += 1000 + i % 10
    step = monitor.summary().step
    assert step is not None
    assert (step.time_ns.count, step.time_ns.total) == (count, count * 1000 + 45 * count // 10)
    assert step.time_ns.p50 == pytest.approx(1004.5, abs=0.6)


def test_warmup_steps_are_in_no_figure():
    monitor, clock, _ = make(warmup_steps=2)
    for ms in (100, 50, 1, 3):
        spend(monitor, clock, forward=ms)
    summary = monitor.summary()
    assert summary.step is not None
    assert (summary.steps_count, summary.warmup_count, summary.step.time_ns.mean) == (4, 2, 2 * MS)


# -- ways to mark


def test_start_step_ends_the_step_before():
    monitor, clock, _ = make()
    for _ in range(3):
        monitor.start_step()
        clock.pass_ms(5)
    monitor.end_step()
    summary = monitor.summary()
    assert summary.step is not None
    assert (summary.steps_count, summary.step.time_ns.mean) == (3, 5 * MS)


# -- mistakes


def test_phases_that_end_out_of_order_are_named():
    monitor, _, _ = make()
    outer, inner = monitor.phase("outer"), monitor.phase("inner")
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(UsageError, match="phase 'outer' ended while 'inner' is open inside it"):
        outer.__exit__(None, None, None)


def test_an_exception_passes_and_its_step_is_not_counted():
    monitor, clock, _ = make()
    left_open = monitor.phase("left open")
    with pytest.raises(KeyError), monitor.step(), monitor.phase("forward"), left_open:
        raise KeyError
    spend(monitor, clock, forward=2)
    summary = monitor.summary()
    assert (summary.steps_count, summary.dropped_count) == (1, 1)
    assert [phase.path for phase in summary.phases] == [("forward",)]


# -- threads and forks


def test_phases_of_other_threads_have_no_share_of_the_step():
    monitor, clock, _ = make()

    def load() -> None:
        for _ in range(3):
            with monitor.phase("prefetch"), monitor.phase("decode"):
                clock.pass_ms(1)

    with monitor.step():
        thread = threading.Thread(target=load)
        thread.start()
        thread.join()
    summary = monitor.summary()
    assert summary.phases == ()
    assert [(p.path, p.time_ns.count, p.time_ns.mean) for p in summary.other_threads] == [
        (("prefetch",), 3, MS),
        (("prefetch", "decode"), 3, MS),
    ]


def test_two_threads_cannot_run_steps_at_once():
    monitor, _, _ = make()
    caught: list[str] = []

    def other() -> None:
        try:
            monitor.start_step()
        except UsageError as error:
            caught.append(str(error))

    with monitor.step():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert caught == ["a step or phase is open on another thread; only one thread at a time can run steps"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_can_go_on_by_itself():
    monitor, clock, _ = make()
    monitor.start_step()
    with monitor._lock:
        pid = os.fork()
        if not pid:
            spend(monitor, clock, data=1)
            os._exit(0 if monitor.summary().steps_count == 1 else 1)
    assert os.waitpid(pid, 0)[1] == 0


# -- devices


def load_fakes() -> Any:
    spec = importlib.util.spec_from_file_location("fake_events", HERE / "observe" / "fake_events.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_on_device(size: int = 64) -> tuple[Monitor, FakeClock, Any]:
    stream = load_fakes().FakeStream()
    pool = EventPool(stream.make_event, size, is_capturing=lambda: stream.capturing)
    monitor, clock, _ = make(device="cuda", event_pool=pool)
    return monitor, clock, stream


def queue_step(monitor: Monitor, clock: FakeClock, stream: Any, *, data_ms: float = 1, forward_ms: float = 9) -> None:
    """The host takes 1 ms per phase, the device what it is told."""
    with monitor.step():
        for name, ms in (("data", data_ms), ("forward", forward_ms)):
            with monitor.phase(name):
                clock.pass_ms(1)
                stream.now_ns += round(ms * MS)


def test_device_time_stands_beside_host_time():
    monitor, clock, stream = make_on_device()
    queue_step(monitor, clock, stream)
    stream.complete_all()
    queue_step(monitor, clock, stream)
    summary = monitor.summary()
    forward = by_path(summary)["forward",]
    assert (forward.time_ns.mean, forward.device_mean_ns, forward.device_steps_count) == (MS, 9 * MS, 1)
    assert summary.step is not None
    assert summary.step.device_mean_ns == 10 * MS


def test_device_time_is_unknown_when_the_pool_is_exhausted():
    monitor, clock, stream = make_on_device(size=2)
    queue_step(monitor, clock, stream)
    stream.complete_all()
    summary = monitor.summary()
    found = by_path(summary)
    assert found["data",].device_mean_ns == MS
    assert (found["forward",].device_mean_ns, found["forward",].time_ns.mean) == (None, MS)
    assert summary.device_unknown_count == 1
    assert "device times unknown for 1 phase\n" in summary.to_text()


# -- metrics and memory


def test_metrics_are_numbers_or_tensors_of_one_number():
    monitor, _, _ = make()
    for value in (1, 2.5, torch.tensor(4.0), torch.tensor([3.5], requires_grad=True), True):
        monitor.record_metric("loss", value)
    (loss,) = monitor.summary().metrics
    assert loss.values is not None
    assert (loss.values.total, loss.values.max, loss.last) == (12.0, 4.0, 1.0)


def test_a_value_that_is_not_finite_is_counted_apart():
    monitor, _, _ = make()
    for value in (1.0, float("nan"), float("inf")):
        monitor.record_metric("loss", value)
    (loss,) = monitor.summary().metrics
    assert loss.values is not None
    assert (loss.values.mean, loss.last, loss.nonfinite_count) == (1.0, None, 2)
    json.dumps(monitor.summary().to_dict(), allow_nan=False)


@pytest.mark.parametrize("value", ["high", None, torch.zeros(3), [1]])
def test_anything_else_is_refused_in_one_line(value: Any):
    monitor, _, _ = make()
    with pytest.raises(UsageError, match=r"\Ametric 'loss' is [^\n]*\Z"):
        monitor.record_metric("loss", value)


# -- epochs, suggestions, text


def test_each_epoch_sums_up_its_own_steps():
    monitor, clock, written = make(warmup_steps=1)
    for ms in (100, 2, 4):
        spend(monitor, clock, forward=ms)
    first = monitor.end_epoch()
    spend(monitor, clock, forward=8)
    second = monitor.end_epoch()
    assert first.step is not None
    assert second.step is not None
    assert (first.epoch, first.steps_count, first.warmup_count, first.step.time_ns.mean) == (1, 3, 1, 3 * MS)
    assert (second.epoch, second.steps_count, second.warmup_count, second.step.time_ns.mean) == (2, 1, 0, 8 * MS)
    assert len(written) == 2
    assert monitor.summary().steps_count == 4


# -- beside the training


def test_the_training_computes_the_same_numbers():
    def train(monitor: Monitor | None) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(30):
            if monitor is not None:
                monitor.start_step()
            loss = model(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if monitor is not None:
                monitor.record_metric("loss", loss)
            losses.append(loss.item())
        if monitor is not None:
            monitor.end_epoch()
        return losses

    assert train(None) == train(make()[0])


def test_a_phase_inside_a_compiled_function_breaks_no_graph():
    monitor = Monitor(warmup_steps=0, device="cpu")
    seen = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.append(graph)
        return graph.forward

    @torch.compile(backend=backend, fullgraph=True)
    def compute(x: torch.Tensor) -> torch.Tensor:
        with monitor.phase("inside"):
            x = x.sin()
        return x.cos()

    with monitor.step(), monitor.phase("forward"):
        compute(torch.ones(3))
        compute(torch.ones(3))
    assert len(seen) == 1
    assert [phase.path for phase in monitor.summary().phases] == [("forward",)]
    torch._dynamo.reset()


def test_it_works_with_torch_and_the_standard_library_alone(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, time\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('numpy', 'rich', 'jinja2'):\n"
        "            raise ImportError(f'No module named {name}', name=name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "import hotloop\n"
        "monitor = hotloop.Monitor(warmup_steps=0)\n"
        "for _ in range(12):\n"
        "    with monitor.step():\n"
        "        with monitor.phase('data'):\n"
        "            time.sleep(0.01)\n"
        "        with monitor.phase('forward'):\n"
        "            pass\n"
        "monitor.end_epoch()\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"  data +\d+\.\d%", done.stdout)


def test_the_examples_run():
    assert doctest.testmod(hotloop.monitor).failed == 0
    docs = HERE.parent / "docs" / "monitor.md"
    assert doctest.testfile(str(docs), module_relative=False).failed == 0
