"""loader-workers: the same samples, draws and losses as in the main process, or a refusal that names the fact."""

import gc
import os
import pickle
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from hotloop.change.apply.api import AppliedStrategy, apply_strategy
from hotloop.core.strategy import Choice, Strategy

STRATEGY = {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 2, "niceness": 0}


class Rows(Dataset[Any]):
    """Row i is full of i."""

    def __init__(self, count: int = 22) -> None:
        self.count = count
        self.scale = 1.0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((4,), i * self.scale)


class Niceness(Rows):
    """Every value is the priority of the process that read it."""

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((4,), float(os.getpriority(os.PRIO_PROCESS, 0)))


class Drawing(Rows):
    def __getitem__(self, i: int) -> torch.Tensor:
        return super().__getitem__(i) * random.random()


class OwnDraws(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.own = random.Random(1)

    def __getitem__(self, i: int) -> torch.Tensor:
        return super().__getitem__(i) * self.own.random()


class Counting(Rows):
    calls = 0

    def __getitem__(self, i: int) -> torch.Tensor:
        self.calls += 1
        return super().__getitem__(i)


class Failing(Rows):
    def __getitem__(self, i: int) -> torch.Tensor:
        if i == 7:
            raise KeyError("seven")
        return super().__getitem__(i)


class Holding(Rows):
    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(12))


def apply_workers(loader: Any, **settings: Any) -> AppliedStrategy:
    chosen = {key: value for key, value in {**STRATEGY, **settings}.items() if value is not None}
    return apply_strategy(Strategy(choices=(Choice(technique="loader-workers", settings=chosen),)), loader=loader)


def record_of(applied: AppliedStrategy) -> tuple[str, str, str | None]:
    (record,) = applied.records
    return record.status, record.detail, record.numerics


@pytest.fixture
def managed() -> Iterator[Callable[..., AppliedStrategy]]:
    """Applies the technique, and ends the workers after the test."""
    applied: list[AppliedStrategy] = []

    def apply(loader: Any, **settings: Any) -> AppliedStrategy:
        applied.append(apply_workers(loader, **settings))
        return applied[-1]

    yield apply
    for one in applied:
        one.undo()


def make_loader(data: Any = None, **options: Any) -> DataLoader[Any]:
    return DataLoader(Rows() if data is None else data, batch_size=4, shuffle=True, **options)


def train(loader: Any, visit: Callable[[int, int, Any], bool] = lambda *_: False) -> list[Any]:
    """Three passes with dropout. What was seen: the loss and the batch of each step, and all generators at the end."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    seen: list[Any] = []
    for epoch in range(3):
        for step, batch in enumerate(loader):
            loss = model(batch).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += [loss.item(), batch.tolist()]
            if visit(epoch, step, loader):
                break
        seen.append(torch.get_rng_state().tolist())
        if loader.generator is not None:
            seen.append(loader.generator.get_state().tolist())
    return [*seen, random.getstate()]


def leave_early(epoch: int, step: int, loader: Any) -> bool:
    return step == epoch


def look_twice(epoch: int, step: int, loader: Any) -> bool:
    if step == 1:
        next(iter(loader))
    return False


def validate(epoch: int, step: int, loader: Any) -> bool:
    if step == 2:
        with torch.no_grad():
            list(loader)
    return False


def change_between(epoch: int, step: int, loader: Any) -> bool:
    if step == 0 and epoch:
        loader.dataset.scale *= 2.0
    return False


def with_own_generator() -> DataLoader[Any]:
    return make_loader(generator=torch.Generator().manual_seed(5))


def with_replacement() -> DataLoader[Any]:
    return DataLoader(Rows(), batch_size=4, sampler=RandomSampler(Rows(), replacement=True, num_samples=50))


@pytest.mark.parametrize(
    ("make", "visit"),
    [
        (make_loader, lambda *_: False),
        (make_loader, leave_early),
        (make_loader, look_twice),
        (make_loader, validate),
        (make_loader, change_between),
        (with_own_generator, lambda *_: False),
        (with_own_generator, leave_early),
        (with_replacement, leave_early),
    ],
    ids=["whole", "left-early", "nested", "validated", "changed", "generator", "generator-left-early", "replacement"],
)
def test_an_exact_loader_gives_the_bits_of_the_main_process(
    make: Callable[[], Any], visit: Any, managed: Callable[..., AppliedStrategy]
) -> None:
    torch.manual_seed(3)
    random.seed(3)
    expected = train(make(), visit)
    torch.manual_seed(3)
    random.seed(3)
    loader = make()
    applied = managed(loader)
    assert record_of(applied)[::2] == ("applied", "exact")
    assert train(loader, visit) == expected
    assert loader.num_workers == 2


def test_batches_come_from_processes_that_stay(managed: Callable[..., AppliedStrategy]) -> None:
    class Asking(Rows):
        def __getitem__(self, i: int) -> torch.Tensor:
            import os

            return torch.tensor([os.getpid()])

    loader = DataLoader(Asking(), batch_size=4)
    managed(loader)
    first, second = ({int(pid) for batch in loader for pid in batch} for _ in range(2))
    assert len(first) == 2
    assert first == second


def test_workers_that_the_script_chose_keep_its_draws(managed: Callable[..., AppliedStrategy]) -> None:
    torch.manual_seed(2)
    expected = train(make_loader(num_workers=1))
    torch.manual_seed(2)
    loader = make_loader(num_workers=1)
    applied = managed(loader)
    assert record_of(applied)[2] == "exact"
    assert "num_workers=2 (was 1)" in record_of(applied)[1]
    assert train(loader)[:-1] == expected[:-1]


def test_draws_in_samples_are_resampled(managed: Callable[..., AppliedStrategy]) -> None:
    applied = managed(make_loader(Drawing()))
    assert record_of(applied)[2] == "resampled"


def test_a_sampler_that_draws_as_it_goes_is_resampled(managed: Callable[..., AppliedStrategy]) -> None:
    class Rolling(torch.utils.data.Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return (random.randrange(22) for _ in range(22))

        def __len__(self) -> int:
            return 22

    applied = managed(DataLoader(Rows(), batch_size=4, sampler=Rolling()))
    assert record_of(applied)[2] == "resampled"


def test_products_on_several_threads_are_reordered(
    managed: Callable[..., AppliedStrategy], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Products(Rows):
        def __getitem__(self, i: int) -> torch.Tensor:
            return torch.ones(3, 3) @ torch.ones(3, 3)

    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert record_of(managed(make_loader(Products())))[2] == "reordered"
    assert record_of(managed(make_loader(Rows())))[2] == "exact"


def lock_thread() -> threading.Thread:
    return threading.Thread(target=lambda: None)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (OwnDraws, "its own generator"),
        (Counting, "changes the dataset's calls"),
        (lambda: Holding(sqlite3.connect(":memory:")), "dataset.held is an open SQLite connection"),
        (lambda: Holding([Path(__file__).open()]), "dataset.held[0] is an open file"),  # noqa: SIM115
        (lambda: Holding(lock_thread()), "is a thread"),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_workers_would_break_is_refused(data: Callable[[], Any], said: str) -> None:
    loader = make_loader(data())
    status, detail, _ = record_of(apply_workers(loader))
    assert status == "not applicable"
    assert said in detail
    assert loader.num_workers == 0


def test_a_read_that_kills_its_process_is_a_reason() -> None:
    class Dying(Rows):
        def __getitem__(self, i: int) -> torch.Tensor:
            import os

            os._exit(7)

    status, detail, _ = record_of(apply_workers(make_loader(Dying())))
    assert (status, detail) == ("not applicable", "a forked process crashed while reading samples (exit code 7)")


def test_a_stream_is_left_alone() -> None:
    loader: DataLoader[Any] = DataLoader(Stream(), batch_size=4)
    assert record_of(apply_workers(loader))[0] == "not applicable"
    assert loader.num_workers == 0


def test_a_sample_that_fails_fails_once_and_the_pass_goes_on(managed: Callable[..., AppliedStrategy]) -> None:
    loader = DataLoader(Failing(), batch_size=4)
    managed(loader)
    iterator, got = iter(loader), 0
    while True:
        try:
            got += len(next(iterator))
        except KeyError:
            continue
        except StopIteration:
            break
    assert got == 22 - 4


def test_a_data_set_changed_within_a_pass_is_followed(managed: Callable[..., AppliedStrategy]) -> None:
    loader = DataLoader(Rows(), batch_size=2)
    managed(loader)
    got = []
    for step, batch in enumerate(loader):
        got.append(batch[0, 0].item())
        if step == 3:
            loader.dataset.scale = -1.0
    assert got == [0, 2, 4, 6, -8, -10, -12, -14, -16, -18, -20]


def test_a_transform_that_is_put_in_later_is_looked_at_again(managed: Callable[..., AppliedStrategy]) -> None:
    class Transformed(Rows):
        transform: Any = None

        def __getitem__(self, i: int) -> torch.Tensor:
            row = super().__getitem__(i)
            return row if self.transform is None else self.transform(row)

    def run(change: bool) -> list[Any]:
        torch.manual_seed(4)
        loader = make_loader(Transformed())
        if change:
            assert record_of(managed(loader))[2] == "exact"
        loader.dataset.transform = lambda row: row + torch.rand(1)
        return [batch.tolist() for batch in loader]

    assert run(True) == run(False)


def test_a_file_that_was_opened_since_is_not_shared_with_workers(
    managed: Callable[..., AppliedStrategy], tmp_path: Path
) -> None:
    class Lazy(Rows):
        """Opens its file at its first sample, as readers of large files do."""

        file: Any = None

        def __getitem__(self, i: int) -> torch.Tensor:
            if self.file is None:
                self.file = (tmp_path / "rows").open("rb")
            self.file.seek(4 * i)
            return torch.tensor([os.getpid(), int.from_bytes(self.file.read(4), "little")])

    (tmp_path / "rows").write_bytes(b"".join(i.to_bytes(4, "little") for i in range(22)))
    data = Lazy()
    loader = DataLoader(data, batch_size=4)
    applied = managed(loader)
    assert record_of(applied)[::2] == ("applied", "exact")
    first = torch.cat(list(loader))
    with torch.no_grad():
        next(iter(loader))  # validation loads in the main process, which opens the file
    second = torch.cat(list(loader))
    data.file.close()
    assert first[:, 1].tolist() == second[:, 1].tolist() == list(range(22))
    assert os.getpid() not in first[:, 0]
    assert set(second[:, 0].tolist()) == {os.getpid()}
    last = applied.applier.records[-1]
    assert last.status == "not applicable"


def test_workers_that_die_leave_their_batches_to_the_main_process(managed: Callable[..., AppliedStrategy]) -> None:
    loader = DataLoader(Rows(), batch_size=2)
    managed(loader)
    iterator = iter(loader)
    got = [next(iterator)[0, 0].item()]
    for worker in iterator._workers:
        worker.terminate()
        worker.join()
    while True:
        try:
            got.append(next(iterator)[0, 0].item())
        except RuntimeError as error:  # torch's handler of SIGCHLD raises wherever the process is
            assert "is killed" in str(error)  # noqa: PT017
        except StopIteration:
            break
    assert got == list(range(0, 22, 2))


def test_undo_gives_the_loader_back(managed: Callable[..., AppliedStrategy]) -> None:
    loader = make_loader()
    before = dict(vars(loader))
    applied = managed(loader)
    next(iter(loader))
    applied.undo()
    assert dict(vars(loader)) == before


def test_workers_end_with_their_loader(managed: Callable[..., AppliedStrategy]) -> None:
    loader = make_loader()
    applied = apply_workers(loader)
    iterator = iter(loader)
    next(iterator)
    workers = list(iterator._workers)
    del iterator, loader, applied
    gc.collect()
    for worker in workers:
        worker.join(10)
    assert [worker.is_alive() for worker in workers] == [False, False]


def priorities(loader: Any) -> set[float]:
    """By how much whoever reads stands back behind this process; the first batch may come before that is set."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    return {float(value) - own for _ in range(3) for batch in loader for value in batch.flatten()}


def lowered_by(niceness: int) -> float:
    """What is left of a lowering: the lowest priority is 19, and these tests may run below the normal one."""
    return float(min(niceness, 19 - os.getpriority(os.PRIO_PROCESS, 0)))


@pytest.mark.parametrize("persistent", [True, False])
def test_workers_get_the_priority_that_was_asked_for(managed: Callable[..., AppliedStrategy], persistent: bool) -> None:
    loader = make_loader(Niceness())
    applied = managed(loader, niceness=7, persistent_workers=persistent)
    assert "nice 7" in record_of(applied)[1]
    assert lowered_by(7) in priorities(loader)


@pytest.mark.parametrize(("threads", "lowered"), [(64, True), (1, False)])
def test_priority_is_lowered_where_threads_and_workers_are_more_than_the_cores(
    managed: Callable[..., AppliedStrategy], monkeypatch: pytest.MonkeyPatch, threads: int, lowered: bool
) -> None:
    monkeypatch.setattr("hotloop.change.apply.applier.count_cores", lambda: 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    loader = make_loader(Niceness())
    applied = managed(loader, niceness=None)
    assert ("nice 19" in record_of(applied)[1]) is lowered
    assert (lowered_by(19) in priorities(loader)) is (lowered or not lowered_by(19))


def test_workers_of_the_script_are_lowered_and_given_back(
    managed: Callable[..., AppliedStrategy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    loader = make_loader(Niceness(), num_workers=2, persistent_workers=True)
    applied = managed(loader, num_workers=2, niceness=None)
    assert pickle.loads(pickle.dumps(loader))._get_iterator.__self__ is not loader
    assert lowered_by(19) in priorities(loader)
    loader._iterator = None
    applied.undo()
    assert priorities(loader) == {0.0}
