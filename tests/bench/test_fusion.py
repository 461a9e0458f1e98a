from typing import Any

import pytest

from hotloop.bench.fusion import Fused, estimate_fused, read_flow

MIB = 1 << 20
ELEMENTS = MIB // 4
COPY = {"elements": MIB, "chunk_elements": 8192, "chunk_ns": 2000.0, "least_elements": 1, "least_ns": 1000.0}
MEASURED: dict[str, Any] = {
    "threads": 1,
    "streams_ns_per_byte": [[1 << 17, 0.1], [1 << 26, 0.1]],
    "copy_in_cache": COPY,
}
"""A byte takes a tenth of a ns however far away, a copied element an eighth of a ns in the cache."""


def op(first: int, name: str, *, backward: bool = False, outside: bool = False, ns: int = 1_000_000) -> dict[str, Any]:
    return {
        "first": first, "name": f"aten::{name}", "count": 1, "cpu_ns": ns, "backward": backward, "outside": outside,
    }  # fmt: skip


def chunk(index: int, computing_ns: float = 1.0) -> dict[str, Any]:
    """An operator of as many float32 elements as a MiB holds, which computes so long for each beside a copy."""
    whole_ns = 1000.0 + 8191 * (computing_ns + 1000 / 8191)
    return {"index": index} | COPY | {"elements": ELEMENTS, "chunk_ns": whole_ns}


def fused(ops: list[dict[str, Any]], calls: list[Any], buffers: int, **more: Any) -> Fused:
    chunks = [chunk(i) for i in range(len(ops))]
    flow = {"calls": calls, "bytes": [MIB] * buffers}
    found = estimate_fused(ops, flow, MEASURED | {"chunks": chunks} | more)
    assert found is not None
    return found


def test_neighbours_make_one_pass_that_reads_and_writes_once() -> None:
    found = fused([op(0, "atan"), op(1, "mul")], [[0, [0], [1]], [1, [1], [2]]], 3)
    assert found.passes_count == 1
    assert found.eager_ns == 2_000_000
    # Two operators compute 1 ns an element; one MiB is read and one written at 0.1 ns a byte.
    computing_ns, moving_ns = 2 * ELEMENTS, 0.1 * 2 * MIB
    assert found.likely_ns == pytest.approx(computing_ns + 0.3 * moving_ns + 8_000, rel=1e-3)
    assert found.least_ns < found.likely_ns < found.most_ns


def test_a_product_between_them_ends_the_pass() -> None:
    ops = [op(0, "atan"), op(1, "mm"), op(2, "mul")]
    found = fused(ops, [[0, [0], [1]], [1, [1, 2], [3]], [2, [3], [4]]], 5)
    assert found.passes_count == 2
    assert (found.kept_ns, found.kept_count) == (1_000_000, 1)


def test_a_product_that_nobody_in_the_pass_needs_does_not_end_it() -> None:
    ops = [op(0, "atan"), op(1, "mm"), op(2, "mul")]
    assert fused(ops, [[0, [0], [1]], [1, [2, 3], [4]], [2, [1], [5]]], 6).passes_count == 1


def test_backward_computes_again_what_would_be_more_to_keep() -> None:
    ops = [op(0, "atan"), op(1, "sigmoid"), op(2, "mm"), op(3, "mul", backward=True)]
    kept = [[0, [0], [1]], [1, [1], [2]], [2, [2, 3], [4]], [3, [4, 1], [5]]]
    again = [*kept[:3], [3, [4, 1, 2], [5]]]
    assert fused(ops, kept, 6).recomputed_count == 0
    # Both results are needed: the input alone is fewer bytes, but one of them is written for the product anyway.
    assert fused(ops, again, 6).recomputed_count == 0
    both = [*ops[:2], op(2, "mm"), op(3, "mul", backward=True), op(4, "atan")]
    calls = [[0, [0], [1]], [1, [1], [2]], [4, [2], [6]], [2, [6, 3], [4]], [3, [4, 1, 2], [5]]]
    assert fused(both, calls, 7).recomputed_count == 1


def test_the_loss_is_not_part_of_the_model() -> None:
    ops = [
        op(0, "atan"),
        op(1, "pow", outside=True),
        op(2, "mul", backward=True),
        op(3, "tanh_backward", backward=True),
    ]
    calls = [[0, [0], [1]], [1, [1], [2]], [2, [2], [3]], [3, [3, 1], [4]]]
    found = fused(ops, calls, 5)
    assert found.outside_ns == 1_000_000
    assert found.eager_ns == 2_000_000


def test_without_a_model_there_is_nothing_to_compile() -> None:
    flow = {"calls": [[0, [0], [1]]], "bytes": [MIB, MIB]}
    assert estimate_fused([op(0, "tanh", outside=True)], flow, MEASURED | {"chunks": [chunk(0)]}) is None


def test_more_threads_share_the_computing_and_not_the_memory() -> None:
    calls = [[0, [0], [1]], [1, [1], [2]]]
    one, two = (fused([op(0, "atan"), op(1, "mul")], calls, 3, threads=n) for n in (1, 2))
    assert one.likely_ns - two.likely_ns == pytest.approx(2 * ELEMENTS * (1 - 1 / 1.9), rel=1e-3)


def test_a_pass_is_never_expected_to_take_longer_than_its_operators() -> None:
    found = fused([op(0, "relu", ns=1000)], [[0, [0], [1]]], 2)
    assert found.likely_ns == 1000
    assert found.most_ns > 1000


def test_an_operator_that_could_not_be_timed_computes_like_a_copy() -> None:
    found = fused([op(0, "atan"), op(1, "mul")], [[0, [0], [1]], [1, [1], [2]]], 3, chunks=[chunk(0)])
    assert found.timed_ratio == 0.5


@pytest.mark.parametrize(
    "fact",
    [
        None,
        {},
        {"calls": [], "bytes": []},
        {"calls": [[0, [0], [9]]], "bytes": [4]},
        {"calls": [[0, [-1], []]], "bytes": [4]},
        {"calls": [[0, [0]]], "bytes": [4]},
        {"calls": [["x", [0], [0]]], "bytes": [4]},
        {"calls": [[0, [0], [0]]], "bytes": ["many"]},
        {"calls": [[0, [0], [0]]], "bytes": [-4]},
        {"calls": {"0": 1}, "bytes": [4]},
    ],
)
def test_what_is_no_flow_is_unknown(fact: Any) -> None:
    assert read_flow(fact) is None


def test_a_call_that_was_disturbed_in_the_step_counts_as_its_replay_says() -> None:
    replayed = chunk(0) | {"whole_ns": 100_000.0}
    found = fused([op(0, "atan"), op(1, "mul")], [[0, [0], [1]], [1, [1], [2]]], 3, chunks=[replayed])
    assert found.eager_ns == pytest.approx(1.6 * 100_000 + 10_000 + 1_000_000)


def test_the_compiler_s_memory_format_counts_for_convolutions() -> None:
    ops = [op(0, "convolution"), op(1, "relu")]
    formats = [{"index": 0, "contiguous_ns": 400, "channels_last_ns": 300}]
    found = fused(ops, [[0, [0], [1]], [1, [1], [2]]], 3, convolutions=formats)
    assert found.convolutions_ns == pytest.approx(0.25 * found.kept_ns)


def test_random_numbers_may_make_a_compiled_pass_slower() -> None:
    found = fused([op(0, "bernoulli", ns=300_000)], [[0, [0], [1]]], 2)
    assert found.likely_ns > found.eager_ns
