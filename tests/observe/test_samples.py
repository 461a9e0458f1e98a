"""How many samples a step holds: from loaders and model inputs of every layout, and unknown where nothing says it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hotloop.core.recording import FIELD
from hotloop.observe import wrappers
from hotloop.observe.session import Session


class Hooks:
    """The hooks of one session around plain calls; nothing of torch is patched but the modules that are asked for."""

    def __init__(self, model: nn.Module) -> None:
        self.session = session = Session({"run": ""})
        self.rows: list[list[int]] = []
        session.recorder.on_start = lambda: lambda row: self.rows.append(list(row))
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        self.begin = wrappers.wrap_loader_iter(session)(lambda loader: iter(loader))
        self.advance = wrappers.wrap_loader_next(session)(lambda iterator: next(iterator))
        self.call = wrappers.wrap_module_call(session)(lambda module, *values: module.forward(*values))
        self.run_backward = wrappers.wrap_run_backward(session)(lambda outputs, *rest: outputs.backward())
        self.optimize = wrappers.wrap_optimizer_step(session)(lambda optimizer: optimizer.step())

    def take(self, loader: Any) -> Iterator[Any]:
        iterator = self.begin(loader)
        while True:
            try:
                yield self.advance(iterator)
            except StopIteration:
                return

    def peek(self, loader: Any) -> Any:
        return self.advance(self.begin(loader))

    def backward(self, x: Any) -> None:
        self.run_backward(self.call(self.model, x).sum())

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.optimize(self.optimizer)

    def samples(self) -> list[int]:
        """Of every row but the first two, which no step has: until an optimizer was seen a backward closes a row."""
        return [row[FIELD["samples"]] for row in self.rows[2:]]


class Sequences(nn.Module):
    """A model whose LSTM takes (time, sample, feature); ``call`` is how its parts are called."""

    def __init__(self, *, transposes: bool) -> None:
        super().__init__()
        self.inner = nn.LSTM(3, 4)
        self.transposes = transposes
        self.call: Callable[..., Any] = lambda module, *values: module(*values)

    def forward(self, x: Any) -> Any:
        return self.call(self.inner, x.transpose(0, 1) if self.transposes else x)[0]


def make_hooks(model: Sequences) -> Hooks:
    hooks = Hooks(model)
    model.call = hooks.call
    return hooks


def loader_of(count: int = 96, size: int = 4, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(count, 7, 3)), batch_size=size, **options)


def time_first(samples: Any) -> Any:
    return torch.stack([x for (x,) in samples], 1)


def test_a_loader_that_puts_time_first_is_counted_by_its_second_dimension() -> None:
    hooks = Hooks(nn.Linear(3, 2))
    for x in hooks.take(loader_of(90, collate_fn=time_first)):
        assert x.shape[0] == 7
        hooks.backward(x)
        hooks.step()
    assert hooks.samples() == [*[4] * 21, 2]


def test_a_short_last_batch_counts_what_it_holds() -> None:
    hooks = Hooks(nn.Linear(3, 2))
    for (x,) in hooks.take(loader_of(90)):
        hooks.backward(x)
        hooks.step()
    assert hooks.samples() == [*[4] * 21, 2]


def test_a_batch_without_a_dimension_of_the_loaders_size_is_unknown() -> None:
    hooks = Hooks(nn.Linear(3, 2))
    for x in hooks.take(loader_of(collate_fn=lambda samples: torch.cat([x for (x,) in samples]))):
        assert x.shape[0] == 28
        hooks.backward(x)
        hooks.step()
    assert set(hooks.samples()) == {0}


def test_inputs_of_a_model_that_takes_time_first() -> None:
    hooks = make_hooks(Sequences(transposes=False))
    for length in (9, 9, 9, 9, 9, 9, 5):
        hooks.backward(torch.randn(length, 6, 3))
        hooks.step()
    assert hooks.samples() == [6] * 6


def test_inputs_of_a_model_that_turns_them_itself() -> None:
    hooks = make_hooks(Sequences(transposes=True))
    for count in (6, 6, 6, 6, 6, 6, 5):
        hooks.backward(torch.randn(count, 9, 3))
        hooks.step()
    assert hooks.samples() == [6, 6, 6, 6, 6, 5]


def test_inputs_whose_layout_nothing_shows_are_unknown() -> None:
    hooks = Hooks(Sequences(transposes=False))  # as when it is compiled: calls inside it are not seen
    for _ in range(8):
        hooks.backward(torch.randn(9, 6, 3))
        hooks.step()
    assert set(hooks.samples()) == {0}


def test_tokens_of_sequences_that_lie_along_the_first_dimension() -> None:
    from hotloop.observe.batches import count_tokens

    ids = torch.randint(1, 9, (6, 8))
    ids[:, 5:] = 0
    assert count_tokens(ids) == count_tokens(ids.t(), 1) == (30, 18, 30)


def test_one_value_at_the_end_of_a_small_batch_is_no_padding() -> None:
    from hotloop.observe.batches import count_tokens

    ids = torch.arange(1, 33).reshape(4, 8)
    assert count_tokens(ids) == (32, 0, 32)
    ids[0, 6:] = 0
    assert count_tokens(ids) == (30, 2, 32)


def test_a_batch_that_was_only_looked_at_is_not_counted() -> None:
    hooks = Hooks(nn.Linear(3, 2))
    loader = loader_of(32)
    for _ in range(3):
        hooks.peek(loader)
        for (x,) in hooks.take(loader):
            hooks.backward(x)
            hooks.step()
    assert set(hooks.samples()) == {4}
    assert {row[FIELD["micro_batches"]] for row in hooks.rows[2:]} == {1}


def test_batches_of_two_iterators_at_once_are_all_counted() -> None:
    hooks = Hooks(nn.Linear(3, 2))
    loader = loader_of(32)
    for _ in range(2):
        for (x,), (other,) in zip(hooks.take(loader), hooks.take(loader), strict=True):
            hooks.backward(torch.cat([x, other]))
            hooks.step()
    assert set(hooks.samples()) == {8}


def test_one_batch_from_a_new_iterator_in_every_step_is_counted() -> None:
    hooks = Hooks(nn.Linear(3, 2))
    loader = loader_of(32)
    for _ in range(9):
        (x,) = hooks.peek(loader)
        hooks.backward(x)
        hooks.step()
    assert set(hooks.samples()) == {4}


def test_a_loader_that_only_evaluates_feeds_no_backward_of_other_data() -> None:
    hooks = Hooks(nn.Linear(3, 2))
    for _ in range(4):
        for _ in range(3):
            hooks.backward(torch.randn(5, 3))
            hooks.step()
        with torch.no_grad():
            for (x,) in hooks.take(loader_of(32)):
                hooks.call(hooks.model, x)
    (state, *_) = hooks.session.loading.states.values()
    assert state.feeds_backward is False
    assert {n for n in hooks.samples() if n} == {5}
    evaluated = [row for row in hooks.rows if row[FIELD["nograd_forwards"]]]
    assert [row[FIELD["bursts_other_loader"]] for row in evaluated] == [1] * 3


def test_batches_fetched_while_the_one_before_is_computed_are_counted_once() -> None:
    hooks = Hooks(nn.Linear(3, 2))
    batches = hooks.take(loader_of(400))
    (x,) = next(batches)
    for _ in range(12):
        for _ in range(8):
            out = hooks.call(hooks.model, x)
            (x,) = next(batches)
            hooks.run_backward(out.sum())
        hooks.step()
    closed = [row[FIELD["samples"]] for row in hooks.rows[-10:]]
    assert set(closed) == {32}


class Pooling(nn.Module):
    """Takes many graphs at once: nodes, edges or None, and for each node the graph that it is of."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, nodes: Any, *rest: Any) -> Any:
        return self.inner(nodes if isinstance(nodes, torch.Tensor) else nodes[0].mean((1, 2)))


def samples_of(*inputs: Any) -> list[int]:
    hooks = Hooks(Pooling())
    for _ in range(6):
        hooks.run_backward(hooks.call(hooks.model, *inputs).sum())
        hooks.step()
    return hooks.samples()


OWNERS = torch.arange(6).repeat_interleave(5)
EDGES = torch.randint(0, 30, (2, 70))


def test_graphs_are_counted_and_not_their_nodes() -> None:
    assert samples_of(torch.randn(30, 3), EDGES, OWNERS) == [6] * 5
    assert samples_of(torch.randn(30, 3), OWNERS, 6) == [6] * 5


def test_graphs_of_which_nothing_tells_how_many_they_are_are_unknown() -> None:
    assert samples_of(torch.randn(30, 3), EDGES) == [0] * 5
    assert samples_of(torch.randn(30, 3), OWNERS) == [0] * 5
    assert samples_of(torch.randn(30, 3), EDGES, torch.randint(0, 6, (30,)).flip(0)) == [0] * 5


def test_labels_beside_samples_are_no_graphs() -> None:
    labels = torch.tensor([3, 1, 2, 0] * 8)
    assert samples_of(torch.randn(32, 3), labels) == [32] * 5


def test_a_list_of_pictures_holds_as_many_samples() -> None:
    pictures = [torch.randn(3, 8 + i, 9) for i in range(5)]
    assert samples_of(pictures) == [5] * 5


def test_a_batch_that_tells_how_many_graphs_it_holds_is_believed() -> None:
    class Graphs:
        def __init__(self, count: int) -> None:
            self.num_graphs = count
            self.x = torch.randn(7 * count, 3)

        def items(self) -> Any:
            return {"x": self.x}.items()

        def values(self) -> Any:
            return {"x": self.x}.values()

    hooks = Hooks(nn.Linear(3, 2))
    loader = DataLoader(range(90), batch_size=4, collate_fn=lambda numbers: Graphs(len(numbers)))
    for batch in hooks.take(loader):
        hooks.backward(batch.x)
        hooks.step()
    assert hooks.samples() == [*[4] * 21, 2]


def run_closures(inputs: Callable[[], Any]) -> list[int]:
    """Samples of the last steps, which evaluate a closure three times each."""
    hooks = Hooks(nn.Linear(3, 2))
    wrapped = wrappers.wrap_optimizer_step(hooks.session)(lambda optimizer, closure: [closure() for _ in range(3)])
    for _ in range(6):
        wrapped(hooks.optimizer, lambda: hooks.backward(inputs()))
    return [row[FIELD["samples"]] for row in hooks.rows[-4:]]


def test_a_closure_that_is_evaluated_again_learns_from_the_same_samples() -> None:
    x = torch.randn(27, 3)
    assert run_closures(lambda: x) == [27] * 4


def test_closures_that_make_their_own_inputs_do_not_tell_their_samples() -> None:
    kept: list[Any] = []

    def draw() -> Any:
        kept.append(torch.randn(9, 3))
        return kept[-1]

    assert run_closures(draw) == [-1] * 4


def test_a_second_loader_beside_the_first_is_seen_in_the_rows() -> None:
    hooks = Hooks(nn.Linear(3, 2))
    for (x,), (other,) in zip(hooks.take(loader_of()), hooks.take(loader_of(size=2)), strict=False):
        hooks.backward(x + other.mean())
        hooks.step()
    columns = [[row[FIELD[name]] for name in ("batches", "micro_batches", "bursts_other_loader")] for row in hooks.rows]
    assert columns[3:8] == [[2, 1, 0]] * 5
