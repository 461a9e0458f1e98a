"""The order of data: every sample once, the same samples in the same steps on any number of ranks."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.train.order import BatchOrder, Layout


def steps_of(layout: Layout, start: int = 0, epoch: int = 0) -> list[list[int]]:
    """The samples of each optimizer step, over all ranks, sorted; repeats that weigh nothing are left out."""
    ranks = []
    for rank in range(layout.world_size):
        order = BatchOrder(replace(layout, rank=rank), shuffle=True, seed=3)
        order.set_position(epoch, start)
        batches, sizes = list(order), order.sizes()
        assert len(batches) == len(order) == len(sizes)
        ranks.append([batch[:size] for batch, size in zip(batches, sizes, strict=True)])
    assert len({len(one) for one in ranks}) == 1
    count = layout.full_steps(start)
    cut = [slice(i * layout.accumulate, (i + 1) * layout.accumulate) for i in range(count)]
    cut.append(slice(count * layout.accumulate, None))
    steps = [sorted(sample for one in ranks for batch in one[part] for sample in batch) for part in cut]
    return [step for step in steps if step]


@settings(max_examples=60, deadline=None)
@given(
    samples=st.integers(1, 60), batch=st.integers(1, 5), world=st.integers(1, 4), accumulate=st.integers(1, 3),
    drop=st.booleans(),
)  # fmt: skip
def test_every_sample_once_and_the_same_steps_on_one_rank(
    samples: int, batch: int, world: int, accumulate: int, drop: bool
) -> None:
    layout = Layout(samples_count=samples, batch_size=batch, world_size=world, accumulate=accumulate, drop_last=drop)
    steps = steps_of(layout)
    alone = steps_of(replace(layout, world_size=1, accumulate=world * accumulate))
    assert steps == alone
    seen = [sample for step in steps for sample in step]
    assert len(seen) == len(set(seen)) == (samples // layout.window * layout.window if drop else samples)


def test_a_position_continues_where_the_steps_ended() -> None:
    layout = Layout(samples_count=50, batch_size=4, world_size=2)
    whole = steps_of(layout)
    assert steps_of(layout, start=16) == whole[2:]
    assert steps_of(replace(layout, world_size=1, accumulate=2), start=16) == whole[2:]
    assert steps_of(layout, start=56) == []


def test_epochs_differ_and_seeds_differ() -> None:
    layout = Layout(samples_count=50, batch_size=4)
    one, other = BatchOrder(layout, shuffle=True, seed=1), BatchOrder(layout, shuffle=True, seed=2)
    first = list(one)
    assert first != list(other)
    one.set_position(1, 0)
    assert first != list(one)
    assert [s for batch in BatchOrder(layout, shuffle=False, seed=1) for s in batch] == list(range(50))
