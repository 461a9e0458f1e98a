"""AdaptiveLoader: the same batches whatever the number of workers does, exact resume, and nothing left behind."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset

from hotloop import AdaptiveLoader, HotloopError, Preempted
from hotloop.train.fetch_pool import FetchPool, LoaderRecipe, Task, seed_of_batch
from hotloop.train.worker_control import WorkerChange

sys.path.insert(0, str(Path(__file__).parent))
from small import Losses, Noisy, make_trainer

UPS_AND_DOWNS = [0, 2, 3, 1, 0, 2]


class Draws(Dataset[Any]):
    """Samples that draw from torch's, Python's and numpy's global generators."""

    def __init__(self, count: int = 46) -> None:
        self.count = count
        self.offset = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        import numpy

        return index + self.offset, torch.rand(2), random.random(), float(numpy.random.rand())


class Plain(Draws):
    """Samples that draw nothing, and one that may fail."""

    def __init__(self, count: int = 46, fails: int = -1, dies: int = -1) -> None:
        super().__init__(count)
        self.fails, self.dies = fails, dies

    def __getitem__(self, index: int) -> Any:
        if index == self.fails:
            raise KeyError(f"no sample {index}")
        if index == self.dies and threading.current_thread() is threading.main_thread() and _is_worker():
            os.kill(os.getpid(), signal.SIGKILL)
        return index + self.offset


def _is_worker() -> bool:
    return torch.utils.data.get_worker_info() is not None


class Scheduled:
    """In a control's place: another number of workers every few batches."""

    def __init__(self, counts: list[int], every: int = 3) -> None:
        self.counts, self.every, self.noted = counts, every, 0
        self.changes: list[WorkerChange] = []

    def note(self, **_: Any) -> None:
        self.noted += 1

    def choose(self, workers: int, *, most: int | None = None) -> int:
        return self.counts[self.noted // self.every % len(self.counts)]


@pytest.fixture(autouse=True)
def _generators() -> Iterator[None]:
    kept, python = torch.get_rng_state(), random.getstate()
    yield
    torch.set_rng_state(kept)
    random.setstate(python)


@pytest.fixture
def make() -> Iterator[Any]:
    """AdaptiveLoaders with a schedule; closed in the end."""
    made: list[AdaptiveLoader] = []

    def build(data: Any, counts: list[int] | None = None, **options: Any) -> AdaptiveLoader:
        loader = AdaptiveLoader(data, **{"batch_size": 4, **options})
        if counts is not None:
            loader._live.control = Scheduled(counts)  # type: ignore[assignment]
        made.append(loader)
        return loader

    yield build
    for one in made:
        one.close()


def wait_for_workers(loader: AdaptiveLoader, count: int, limit_s: float = 60.0) -> None:
    """Until so many can take a batch; the loop makes its batches itself before."""
    until_s = time.monotonic() + limit_s
    while loader._live.pool is None or loader._live.pool.ready_count() < count:
        assert time.monotonic() < until_s
        time.sleep(0.005)


def plain(batches: Any) -> list[Any]:
    return [[one.tolist() for one in batch] if isinstance(batch, list) else batch.tolist() for batch in batches]


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_the_order_and_the_main_process_draws_are_those_of_a_dataloader(make: Any, kind: str) -> None:
    torch.manual_seed(3)
    expected = DataLoader(Plain(), batch_size=4, shuffle=True)
    wanted = [(plain(expected), torch.rand(1).item()) for _ in range(3)]
    torch.manual_seed(3)
    loader = make(Plain(), UPS_AND_DOWNS, shuffle=True, workers_kind=kind)
    assert [(plain(loader), torch.rand(1).item()) for _ in range(3)] == wanted


def test_random_draws_do_not_depend_on_the_number_of_workers(make: Any) -> None:
    def draw(counts: list[int]) -> list[Any]:
        torch.manual_seed(3)
        loader = make(Draws(), counts, shuffle=True)
        return [plain(loader) for _ in range(2)]

    alone = draw([0])
    assert draw(UPS_AND_DOWNS) == draw([3]) == alone
    values = [value for one in alone for batch in one for value in batch[2]]
    assert len(set(values)) == len(values)  # every batch of every pass has a seed of its own


def test_a_loop_without_workers_leaves_the_generators_alone(make: Any) -> None:
    import numpy

    loader = make(Draws(), [0])
    batches = iter(loader)
    before = torch.get_rng_state(), random.getstate(), str(numpy.random.get_state())
    next(batches)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), str(numpy.random.get_state()))


@pytest.mark.parametrize("position", [1, 5, 11, 12])
@pytest.mark.parametrize("counts", [[0], UPS_AND_DOWNS])
def test_a_state_goes_on_with_the_next_batch(make: Any, position: int, counts: list[int]) -> None:
    torch.manual_seed(3)
    whole = make(Draws(), [2], shuffle=True)
    wanted = [plain(whole), plain(whole)]
    torch.manual_seed(3)
    first = make(Draws(), counts, shuffle=True)
    batches = iter(first)
    had = plain(next(batches) for _ in range(position))
    process = torch.get_rng_state()
    state = json.loads(json.dumps(first.state_dict()))
    torch.manual_seed(77)
    second = make(Draws(), counts, shuffle=True)
    second.load_state_dict(state)
    assert second.state_dict() == state
    torch.set_rng_state(process)
    assert [had + plain(second), plain(second)] == wanted


def test_a_state_between_two_passes_begins_a_new_one(make: Any) -> None:
    loader = make(Plain(), [0])
    assert loader.state_dict()["position"] is None
    list(loader)
    assert loader.state_dict()["position"] is None
    loader.load_state_dict(loader.state_dict())
    assert len(list(loader)) == 12


def test_out_of_order_every_batch_once_also_after_a_resume(make: Any) -> None:
    class Slow(Plain):
        def __getitem__(self, index: int) -> Any:
            time.sleep(0.1 if index == 9 else 0)
            return index

    loader = make(Slow(), [3], in_order=False)
    batches = iter(loader)
    had = [next(batches).tolist() for _ in range(8)]
    state = json.loads(json.dumps(loader.state_dict()))
    again = make(Slow(), [3], in_order=False)
    again.load_state_dict(state)
    rest = plain(again)
    assert sorted(had + rest) == [list(range(at, min(46, at + 4))) for at in range(0, 46, 4)]


@pytest.mark.parametrize("counts", [[0], [2]])
def test_an_error_keeps_its_type_and_names_the_sample(make: Any, counts: list[int]) -> None:
    loader = make(Plain(fails=30), counts)
    batches, had = iter(loader), 0
    for number in range(7):
        had += len(next(batches))
        if number == 4:
            wait_for_workers(loader, counts[0])
    assert had == 28
    with pytest.raises(KeyError) as raised:
        next(batches)
    said = str(raised.value) + " ".join(getattr(raised.value, "__notes__", ()))
    assert "no sample 30" in said
    if counts != [0]:
        assert "KeyError in sample 30 (batch 7, loader worker " in said
    elif hasattr(raised.value, "add_note"):
        assert "sample 30 of batch 7" in said
    assert next(batches).tolist() == [32, 33, 34, 35]  # its batch is gone, the next one comes


def test_a_worker_that_dies_is_named_with_its_sample_and_the_rest_arrives(make: Any) -> None:
    loader = make(Plain(dies=30), [2])
    had: list[int] = []
    batches = iter(loader)
    for number in range(7):
        had += next(batches).tolist()
        if number == 4:
            wait_for_workers(loader, 1)  # the other may meet the sample already
    assert had == list(range(28))
    with pytest.raises(RuntimeError, match=r"ended \(signal SIGKILL\) while it made sample 30 of batch 7; .* memory"):
        next(batches)
    assert plain(batches)[0] == [32, 33, 34, 35]


def test_a_worker_init_fn_that_fails_says_so(make: Any) -> None:
    def fail(number: int) -> None:
        raise OSError("no scratch disk")

    loader = make(Plain(), [0, 2], worker_init_fn=fail)
    with pytest.raises(OSError, match=r"worker_init_fn of loader worker [01][\s\S]*no scratch disk"):
        [list(loader) for _ in range(3)]


def test_a_batch_that_cannot_be_sent_is_an_error_of_its_batch(make: Any) -> None:
    loader = make(Plain(), [2], collate_fn=lambda samples: lambda: samples)
    with pytest.raises(Exception, match="pickle"):
        [list(loader) for _ in range(2)]


def test_workers_are_added_and_retired_within_a_pass(make: Any) -> None:
    loader = make(Plain(400), [0, 3, 1, 0])
    seen = set()
    for _ in loader:
        seen.add(loader.workers_count)
        time.sleep(0.005)
    assert {0, 1, 3} <= seen


def test_a_changed_data_set_gets_new_workers(make: Any) -> None:
    data = Plain()
    loader = make(data, [2])
    list(loader)
    list(loader)
    data.offset = 1000
    assert [value for batch in plain(loader) for value in batch] == list(range(1000, 1046))


def test_the_next_pass_is_begun_before_this_one_ends(make: Any) -> None:
    generator = torch.Generator().manual_seed(4)
    expected = DataLoader(Plain(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(4))
    wanted = [plain(expected) for _ in range(4)]
    loader = make(Plain(), [2], shuffle=True, generator=generator)
    found = []
    for _ in range(4):
        found.append(plain(loader))
        torch.rand(1)  # the training draws: not from the generator of the loader
    assert found == wanted
    assert loader._live.next_pass is not None
    assert loader._live.misses == 0


def test_a_pass_begun_ahead_is_dropped_where_it_would_differ(make: Any) -> None:
    torch.manual_seed(3)
    expected = DataLoader(Plain(), batch_size=4, shuffle=True)
    wanted = [(plain(expected), torch.rand(1).item()) for _ in range(5)]
    torch.manual_seed(3)
    loader = make(Plain(), [2], shuffle=True)  # its order comes from the generator that the training draws from
    assert [(plain(loader), torch.rand(1).item()) for _ in range(5)] == wanted
    assert loader._live.misses == 2
    assert loader._live.next_pass is None


def test_a_distributed_sampler_s_next_epoch_is_foreseen(make: Any) -> None:
    def sampler() -> Any:
        return DistributedSampler(range(46), num_replicas=2, rank=1, seed=5)

    one = sampler()
    expected = DataLoader(Plain(), batch_size=4, sampler=one)
    other = sampler()
    loader = make(Plain(), [2], sampler=other, generator=torch.Generator())
    for epoch in range(4):
        one.set_epoch(epoch)
        other.set_epoch(epoch)
        assert plain(loader) == plain(expected)
        assert other.epoch == epoch
    assert loader._live.misses == 0


def test_no_more_is_made_ahead_than_allowed(make: Any) -> None:
    loader = make(Plain(400), [2], prefetch_factor=3)
    batches = iter(loader)
    owed = []
    for _ in range(20):
        next(batches)
        owed.append(batches.owed_count())
    assert max(owed) == 5  # 2 workers x 3, one of them delivered
    loader._live.memory.batch_bytes = 1 << 60
    next(batches)
    for _ in range(10):
        next(batches)
    assert batches.owed_count() <= 1


def test_two_passes_at_once_and_a_pass_that_is_left(make: Any) -> None:
    loader = make(Plain(), [2])
    assert all(torch.equal(a, b) for a, b in zip(loader, loader, strict=True))
    for _ in loader:
        break
    assert len(plain(loader)) == 12


def test_samples_without_batches(make: Any) -> None:
    loader = make(Plain(10), [0, 2], batch_size=None, shuffle=False)
    assert [int(one) for one in loader] == list(range(10))


def test_threads_refuse_samples_that_draw_from_shared_generators(make: Any) -> None:
    loader = make(Draws(), workers_kind="thread")
    with pytest.raises(HotloopError, match="global generator of numpy, random, torch"):
        list(loader)


def test_spawned_workers(make: Any) -> None:
    data = TensorDataset(torch.arange(400))
    loader = make(data, [0, *[1] * 100], multiprocessing_context="spawn")
    until = time.monotonic() + 120
    values: list[int] = []
    for batch in loader:
        values += batch[0].tolist()
        while loader._live.pool is not None and loader.workers_count and not loader._live.pool.ready_count():
            assert time.monotonic() < until
            time.sleep(0.05)
    assert values == list(range(400))


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


@pytest.mark.parametrize(
    ("data", "options", "said"),
    [
        (Endless(), {}, "Endless is an IterableDataset"),
        (Plain(), {"num_workers": 2}, "max_workers bounds it"),
        (Plain(), {"workers_kind": "fibre"}, "workers_kind='fibre': write one of process, thread"),
        (Plain(), {"max_workers": -1}, "max_workers=-1: write a whole number from 0 on"),
        (Plain(), {"prefetch_factor": 0}, "prefetch_factor=0: write a whole number from 1 on"),
    ],
)
def test_what_makes_no_sense_is_refused(data: Any, options: Any, said: str) -> None:
    with pytest.raises(HotloopError, match=said):
        AdaptiveLoader(data, batch_size=4, **options)


def test_a_state_of_other_data_is_refused(make: Any) -> None:
    loader = make(Plain(), [0])
    with pytest.raises(HotloopError, match="not a state of an AdaptiveLoader"):
        loader.load_state_dict({"schema": "torchdata"})
    with pytest.raises(HotloopError, match=r"damaged; give what state_dict\(\) returned"):
        loader.load_state_dict({"schema": "hotloop.loader/1"})


@pytest.mark.parametrize(
    ("data", "options", "said"),
    [
        (
            Plain(23),
            {"shuffle": True, "batch_size": 8},
            "samples is 46 there and 23 here, batch_size is 4 there and 8 here",
        ),
        (Plain(), {"shuffle": False}, "sampler is 'RandomSampler' there and 'SequentialSampler' here"),
        (Plain(), {"shuffle": True, "drop_last": True}, "drop_last is False there and True here; build the loader as"),
        (
            Plain(),
            {"shuffle": True, "generator": torch.Generator()},
            "own generators is 'none' there and 'loader, sampler' here",
        ),
    ],
)
def test_a_state_of_another_loader_is_refused_with_what_differs(make: Any, data: Any, options: Any, said: str) -> None:
    loader = make(Plain(), [0], shuffle=True)
    next(iter(loader))
    other = make(data, [0], **options)
    with pytest.raises(HotloopError, match="the state belongs to another loader: ") as raised:
        other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert said in str(raised.value)


def test_a_state_of_another_seed_or_rank_is_refused(make: Any) -> None:
    def build(seed: int, rank: int) -> Any:
        return make(Plain(), [0], sampler=DistributedSampler(range(46), num_replicas=2, rank=rank, seed=seed))

    loader = build(5, 0)
    next(iter(loader))
    with pytest.raises(HotloopError, match="seed is 5 there and 6 here, rank is 0 there and 1 here"):
        build(6, 1).load_state_dict(loader.state_dict())
    build(5, 0).load_state_dict(loader.state_dict())


def test_seeds_of_batches_differ() -> None:
    seeds = {seed_of_batch(base, number) for base in range(20) for number in range(200)}
    assert len(seeds) == 4000
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("stop_at", [5, 11, 14])
def test_the_trainer_resumes_with_equal_bits(tmp_path: Path, make: Any, stop_at: int) -> None:
    def fit(callback: Losses, folder: str, counts: list[int]) -> None:
        data = Noisy(44)
        data.noise = 0.1
        loader = make(data, counts, shuffle=True)
        given = make_trainer(callback, checkpoint=tmp_path / folder)
        loader_of = AdaptiveLoader.with_batches

        def with_schedule(self: AdaptiveLoader, order: Any) -> AdaptiveLoader:
            made = loader_of(self, order)
            made._live.control = Scheduled(counts)  # type: ignore[assignment]
            return made

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(AdaptiveLoader, "with_batches", with_schedule)
            given.fit(loader, epochs=3)

    whole, first, second = Losses(), Losses(stop_at), Losses()
    fit(whole, "whole", [2])
    with pytest.raises(Preempted):
        fit(first, "cut", UPS_AND_DOWNS)
    random.seed(99)
    torch.manual_seed(99)
    fit(second, "cut", [1, 0])
    assert first.losses | second.losses == whole.losses
    assert not set(first.losses) & set(second.losses)


SCRIPT = """
import os, signal, sys, threading, time, torch
from hotloop import AdaptiveLoader

class Data(torch.utils.data.Dataset):
    def __len__(self): return 100_000
    def __getitem__(self, i):
        return torch.empty(2_000_000)  # large, so that most of a worker's time goes to making shared memory

loader = AdaptiveLoader(Data(), batch_size=4, max_workers=3)
loader._live.control.choose = lambda workers, most=None: 3
for number, batch in enumerate(loader):
    if number == 30:
        print(*loader._live.pool.pids(), flush=True)
    if number == int(sys.argv[1]):
        raise ValueError("the training failed")
"""


def wait_until_gone(pids: list[int], limit_s: float = 10.0) -> list[int]:
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        if not left:
            return []
        time.sleep(0.05)
    return left


@pytest.mark.parametrize(
    ("number", "fails_at", "code"),
    [(signal.SIGKILL, -1, -9), (signal.SIGINT, -1, -2), (None, 40, 1)],
)
def test_nothing_is_left_behind(number: int | None, fails_at: int, code: int, tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(fails_at)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    pids = [int(word) for word in child.stdout.readline().split()]
    assert len(pids) == 3
    if number is not None:
        os.killpg(child.pid, number) if number == signal.SIGINT else child.send_signal(number)
    assert child.wait(20) == code
    assert wait_until_gone(pids) == []
    said = child.stderr.read()
    child.stdout.close()
    child.stderr.close()
    if (
        number != signal.SIGKILL
    ):  # then a worker may print that the parent left in the midst of a handover, as torch's do
        assert said.count("Traceback") == 1  # the training's own, none of a worker
    assert [name for name in os.listdir("/dev/shm") if name.startswith(tuple(f"torch_{pid}_" for pid in pids))] == []


def test_a_worker_that_is_told_to_retire_does_not_count_while_it_ends_its_task() -> None:
    """Counted, it would look as if the number had not been changed, and the control would give the trial up."""
    gate = threading.Event()

    class Gated(Plain):
        def __getitem__(self, index: int) -> Any:
            gate.wait(30)
            return index

    class Loop:
        def accept(self, number: int, outcome: Any) -> None:
            assert outcome.batch == [number]

    loop = Loop()
    recipe = LoaderRecipe(dataset=Gated(), collate_fn=list, is_batched=True)
    pool = FetchPool(recipe, "thread", None, lambda batch: batch)
    try:
        pool.resize(4)
        for number in range(4):
            pool.submit(Task(weakref.ref(loop), number, 0, [number]))
        until_s = time.monotonic() + 30
        while pool._pending:
            assert time.monotonic() < until_s
            time.sleep(0.005)
        pool.resize(2)
        assert (pool.alive_count(), pool.staying_count()) == (4, 2)
    finally:
        gate.set()
        pool.close()


LEAVES_THREADS = """
import time, torch, hotloop

class Sums(torch.utils.data.Dataset):
    def __len__(self):
        return 64_000
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.ones(3_000_000).sum()

loader = hotloop.AdaptiveLoader(Sums(), batch_size=4, workers_kind="thread")
for number, batch in enumerate(loader):
    if loader.workers_count and number > 40:
        break
print(loader.workers_count > 0)
"""


def test_a_process_whose_loop_ends_early_does_not_abort_with_threads_at_work() -> None:
    """11 of 12 such runs aborted at exit when nobody waited for the threads."""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", LEAVES_THREADS], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
