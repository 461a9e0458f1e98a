"""Batches and inputs of every layout: sizes and identities, and nothing of a person's object is called."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hotloop.agent.observe import inputs
from hotloop.agent.observe.inputs import Copier, describe_batch, identify_inputs, needs_gradients, size_inputs
from hotloop.core.events import (
    ALL_TENSORS,
    COPIED_FRAMES,
    COPIED_IDS,
    COPIED_KEY_MASK,
    COPIED_MASK,
    HAS_INPUT,
    HAS_SEQUENCES,
    MOST_COPY_BYTES,
    NEEDS_GRADIENTS,
    split_sizes,
)

X = torch.zeros(8, 5, 3)


class Trap(dict):  # type: ignore[type-arg]
    """A batch whose every method is a person's code."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    __len__ = __iter__ = __getitem__ = __contains__ = __eq__ = __bool__ = __hash__ = __getattribute__  # type: ignore[assignment]


class Lazy:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


Pair = namedtuple("Pair", "x y")


@pytest.mark.parametrize(
    "batch",
    [
        X,
        [X, torch.zeros(8)],
        (torch.zeros(8, 5), torch.zeros(8, 5)),
        Pair(X, 1),
        {"x": X},
        OrderedDict(a=[X]),
        [{"x": X}],
    ],
)
def test_the_leading_sizes_of_the_first_tensor_are_a_batchs(batch: Any) -> None:
    flags, _, lead, sequences = describe_batch(batch)
    assert flags & HAS_INPUT
    assert split_sizes(lead) == (8, 5)
    assert split_sizes(sequences) == (8, 5)


@pytest.mark.parametrize("batch", [None, 3, "text", [], {}, [None], torch.tensor(1.0)])
def test_what_holds_no_tensor_with_a_length_has_no_size(batch: Any) -> None:
    flags, _, lead, _ = describe_batch(batch)
    assert (flags & HAS_INPUT, lead) == (0, 0)


def test_nothing_of_a_persons_batch_is_called() -> None:
    assert split_sizes(describe_batch(Trap(x=X))[2]) == (8, 5)
    assert [describe_batch(batch)[2] for batch in (Trap(x=1), Lazy(), [Lazy()])] == [0] * 3
    assert identify_inputs((Trap(x=X),), {}) == (0, 0, 0)


def test_named_tokens_are_the_sequences_of_a_batch() -> None:
    flags, _, lead, sequences = describe_batch({"pixels": torch.zeros(8, 3), "input_ids": torch.zeros(8, 20)})
    assert flags & HAS_SEQUENCES
    assert (split_sizes(lead), split_sizes(sequences)) == ((8, 3), (8, 20))


@pytest.mark.parametrize(
    ("batch", "listed"), [(([X, X], [1, 2]), 2), (([X, X], [1]), 0), ((X, X, X), 3), ([X], 1), ({"x": [X, X]}, 0)]
)
def test_a_batch_that_lists_its_samples_says_how_many(batch: Any, listed: int) -> None:
    assert describe_batch(batch)[1] == -listed


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: [one], lambda one: [one, one], lambda one: {"x": one}])
def test_a_nested_batch_has_a_length_and_nothing_else_is_asked_of_it(wrap: Any) -> None:
    nested = torch.nested.nested_tensor([torch.ones(3, 2), torch.ones(5, 2)])
    flags, _, lead, _ = describe_batch(wrap(nested))
    assert split_sizes(lead) == (2, 0)
    assert not flags & HAS_SEQUENCES


def test_a_tensor_is_known_again_until_it_is_changed() -> None:
    x = torch.randn(4, 2)
    flags, first, every = identify_inputs((x,), {})
    assert flags == HAS_INPUT | ALL_TENSORS
    assert identify_inputs((x,), {}) == (flags, first, every)
    x.mul_(0.5)
    assert identify_inputs((x,), {})[1] != first


def test_another_tensor_at_the_same_address_is_another_one() -> None:
    memory = bytearray(32)
    seen = set()
    for value in range(3):
        memory[:] = bytes([value]) * 32
        seen.add(identify_inputs((torch.frombuffer(memory, dtype=torch.float32),), {})[1])
    assert len(seen) == 3


def test_all_inputs_have_a_number_together_unless_one_is_no_tensor() -> None:
    x, y = torch.randn(3), torch.randn(3)
    flags, first, every = identify_inputs((x,), {"y": y})
    assert flags & ALL_TENSORS
    assert (first, every) == (identify_inputs((x,), {})[1], identify_inputs((x, y), {})[2])
    assert identify_inputs((x, y.clone()), {})[2] != every
    flags, first_again, every = identify_inputs((x, 3), {})
    assert (flags & ALL_TENSORS, first_again, every) == (0, first, 0)


@pytest.mark.parametrize(
    "make", [lambda x: x.to_sparse(), lambda x: torch.empty_like(x, device="meta"), lambda x: x.t(), lambda x: x[:0]]
)
def test_a_tensor_without_plain_memory_is_identified_all_the_same(make: Any) -> None:
    x = make(torch.randn(3, 4))
    assert identify_inputs((x,), {}) == identify_inputs((x,), {})
    assert identify_inputs((x,), {})[0] & HAS_INPUT


def test_inference_tensors_count_no_version() -> None:
    with torch.inference_mode():
        x = torch.ones(2)
        assert identify_inputs((x,), {})[0] & HAS_INPUT
    assert identify_inputs((x,), {})[0] & HAS_INPUT


def test_whether_an_input_needs_gradients() -> None:
    x = torch.ones(2)
    needs = torch.ones(2, requires_grad=True)
    assert [needs_gradients(args, {}) for args in ((x,), (x, needs), (3, needs))] == [
        0,
        NEEDS_GRADIENTS,
        NEEDS_GRADIENTS,
    ]
    assert identify_inputs((needs,), {})[0] & NEEDS_GRADIENTS
    assert identify_inputs((x, needs), {})[0] & NEEDS_GRADIENTS


def test_no_operator_runs_and_no_mode_is_asked() -> None:
    class Counts(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Counts.calls += 1
            return function(*args, **(kwargs or {}))

    with Counts():
        describe_batch([X, X])
        identify_inputs((X, X), {})
        size_inputs((X,), {})
    assert Counts.calls == 0

    class Asks(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError(function)

    with Asks():
        assert describe_batch([X, X]) == (0, 0, 0, 0)
        assert identify_inputs((X,), {}) == size_inputs((X,), {}) == (0, 0, 0)
        assert needs_gradients((X,), {}) == 0


def test_pictures_in_a_list_are_samples_one_by_one() -> None:
    assert size_inputs(([torch.zeros(3, 8, 9), torch.zeros(3, 9, 9)],), {})[1:] == (2, 0)
    assert split_sizes(size_inputs((), {"x": X})[1]) == (8, 5)


class Copies(list):  # type: ignore[type-arg]
    def copy(self, *copy: Any) -> None:  # type: ignore[override]
        self.append(copy)


def copied(batch: Any) -> Any:
    copies = Copies()
    Copier(copies).look(batch)
    return copies[0][1:] if copies else None


MASK = torch.ones(2, 3, dtype=torch.bool)
IDS = torch.zeros(2, 3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ({"input_ids": IDS, "attention_mask": MASK.long()}, (COPIED_MASK, 2, 3, 8)),
        ({"input_ids": IDS, "attention_mask": MASK}, (COPIED_MASK, 2, 3, 1)),
        ({"x": torch.zeros(2, 3, 4), "src_key_padding_mask": MASK}, (COPIED_KEY_MASK, 2, 3, 1)),
        ([IDS, IDS], (COPIED_IDS, 2, 3, 8)),
        ([IDS.int()], (COPIED_IDS, 2, 3, 4)),
        ([torch.zeros(2, 3, 5)], (COPIED_FRAMES, 2, 3, 20)),
        ({"input_ids": IDS, "attention_mask": torch.ones(2, 4)}, (COPIED_IDS, 2, 3, 8)),  # a mask of something else
        ([torch.zeros(2, 3)], None),
        ([IDS.t()], None),
        ([IDS.to("meta")], None),
        ([torch.zeros(2, MOST_COPY_BYTES, dtype=torch.int64)], None),
        (None, None),
    ],
)
def test_what_tells_padding_is_copied(batch: Any, expected: Any) -> None:
    assert copied(batch) == expected


def test_copies_that_have_cost_enough_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 0

    def clock() -> int:
        nonlocal now_ns
        now_ns += 3_000_000
        return now_ns

    monkeypatch.setattr(inputs, "_clock", clock)
    copies = Copies()
    copier = Copier(copies)
    for _ in range(2_000):
        copier.look([IDS])
    assert 7 <= len(copies) <= 12  # 20 ms at 3 ms each, and 0.05 % of 6 s
