"""Origins and lifetimes -> categories: each rule by hand, and what must be unknown."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hotloop.core.memory_categories import Allocation, Origin, categorize_allocations
from hotloop.core.memory_snapshot import MEMORY_CATEGORIES

Made = tuple[str, int | None, str]
"""(origin, freed at, freed by); made at its place in the list."""


def categorize(*rows: tuple[str, int | None] | Made, older: int = 0) -> list[str]:
    """The first ``older`` rows were made before the recording. Places are tens: row 2 is made at 20."""
    return categorize_allocations(
        [
            Allocation(
                origin=Origin[row[0]],
                made=-1 if i < older else 10 * i,
                freed=row[1],
                freed_by=Origin[row[2]] if len(row) == 3 else Origin.UNTOLD,
                site=row[0] if row[0] == "COPY" else i,
            )
            for i, row in enumerate(rows)
        ]
    )


def test_a_forward_keeps_activations_and_throws_temporaries_away() -> None:
    assert categorize(("FORWARD", 35), ("FORWARD", 15), ("FORWARD", None), ("BACKWARD", 45), ("BACKWARD", 55))[:3] == [
        "activation",
        "temporary",
        "activation",
    ]


def test_a_backward_leaves_gradients() -> None:
    """The first is held when the optimizer allocates; the second is gone before the pass goes on."""
    backward: list[tuple[str, int | None]] = [("BACKWARD", None), ("BACKWARD", 15), ("BACKWARD", 90)]
    assert categorize(*backward, ("OPTIMIZER", 31, "OPTIMIZER"), ("FORWARD", None)) == [
        "gradient",
        "temporary",
        "gradient",
        "temporary",
        "activation",
    ]


def test_an_optimizer_that_allocates_nothing_ends_no_pass() -> None:
    """Freed between the last allocation of the pass and the next forward: by whom, decides."""
    before, after = ("BACKWARD", None), ("FORWARD", None)
    assert categorize(before, ("BACKWARD", 15, "ELSEWHERE"), after)[1] == "gradient"
    assert categorize(before, ("BACKWARD", 15, "BACKWARD"), after)[1] == "temporary"
    assert categorize(before, ("BACKWARD", 15), after)[1] == "unknown"


def test_the_same_code_is_what_it_was_before() -> None:
    def made(at: int, freed: int | None) -> Allocation:
        origin = Origin.BACKWARD if at % 2 else Origin.FORWARD
        return Allocation(origin=origin, made=at, freed=freed, freed_by=Origin.UNTOLD, site=at % 2)

    assert categorize_allocations([made(1, 4), made(2, 3), made(5, None)]) == ["gradient", "temporary", "gradient"]


def test_what_an_optimizer_keeps_is_its_state() -> None:
    assert categorize(("OPTIMIZER", None), ("OPTIMIZER", 15, "OPTIMIZER"), ("FORWARD", None)) == [
        "optimizer_state",
        "temporary",
        "activation",
    ]
    assert categorize(("OPTIMIZER", None)) == ["unknown"]


def test_a_copy_is_an_input_when_it_comes_again_after_a_forward() -> None:
    rows: list[tuple[str, int | None]] = [("COPY", 35), ("FORWARD", None), ("BACKWARD", None), ("COPY", None)]
    assert categorize(*rows)[0::3] == ["input", "input"]
    assert categorize(("COPY", None), ("COPY", None), ("FORWARD", None))[:2] == ["unknown", "unknown"]


def test_gathered_parameters_do_not_end_a_backward() -> None:
    def made(origin: Origin, at: int, freed: int | None, *, nested: bool = False) -> Allocation:
        return Allocation(origin=origin, made=at, freed=freed, freed_by=Origin.UNTOLD, site=at, is_nested=nested)

    rows = [made(Origin.BACKWARD, 0, 25), made(Origin.PARAMETER, 10, 60, nested=True), made(Origin.BACKWARD, 30, None)]
    assert categorize_allocations([*rows, made(Origin.FORWARD, 70, None)])[:2] == ["temporary", "parameter"]


def test_what_is_older_than_the_recording_is_told_only_where_its_stack_does() -> None:
    rows: list[tuple[str, int | None]] = [("PARAMETER", None), ("FORWARD", None), ("BACKWARD", None), ("UNTOLD", None)]
    later: list[tuple[str, int | None]] = [("BACKWARD", None), ("FORWARD", None)]
    assert categorize(*rows, *later, older=4)[:4] == ["parameter", "unknown", "gradient", "unknown"]
    assert categorize(*rows, older=4)[2] == "unknown"


@given(
    st.lists(
        st.tuples(
            st.sampled_from([o.name for o in Origin]),
            st.one_of(st.none(), st.integers(0, 400)),
            st.sampled_from([o.name for o in Origin]),
        ),
        max_size=40,
    )
)
def test_every_allocation_gets_one_known_word(rows: list[Made]) -> None:
    lasting = [(o, None if f is None else 10 * i + 1 + f, by) for i, (o, f, by) in enumerate(rows)]
    found = categorize(*lasting)
    assert len(found) == len(rows)
    assert set(found) <= set(MEMORY_CATEGORIES)
