"""Decimal text to nanoseconds, against decimal.Decimal."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.evidence.trace.decimals import LIMIT_NS, MISSING, OK, WRONG, parse_microseconds, parse_one

_WIDE = Context(prec=60)


def exact_ns(text: str) -> int:
    return int((_WIDE.multiply(Decimal(text), Decimal(1000))).to_integral_value(ROUND_HALF_EVEN, _WIDE))


whole = st.integers(0, LIMIT_NS // 1000 - 1).map(str)
kineto_form = st.tuples(st.integers(0, LIMIT_NS // 1000 - 1), st.integers(0, 999)).map(
    lambda pair: f"{pair[0]}.{pair[1]:03d}"
)
any_fraction = st.tuples(st.integers(0, 10**15), st.text("0123456789", min_size=1, max_size=18)).map(
    lambda pair: f"{pair[0]}.{pair[1]}"
)
exponent = st.tuples(st.integers(-(10**6), 10**6), st.integers(-9, 6)).map(lambda pair: f"{pair[0]}e{pair[1]}")
negative = st.integers(1, 10**15).map(lambda value: f"-{value}.5")


@pytest.mark.parametrize(
    "form", [whole, kineto_form, any_fraction, exponent, negative, whole | any_fraction | exponent]
)
def test_every_way_to_write_a_number_gives_the_exact_nanoseconds(form: st.SearchStrategy[str]) -> None:
    @given(st.lists(form, min_size=1, max_size=30), st.booleans())
    def check(texts: list[str], quoted: bool) -> None:
        tokens = [(f'"{text}"' if quoted else text).encode() for text in texts]
        ns, state = parse_microseconds(tokens)
        assert not state.any()
        assert ns.tolist() == [exact_ns(text) for text in texts]

    check()


@given(
    st.lists(st.sampled_from(["12.5", "7", "1e3", '"8.25"', "", "null", "NaN", "[1]", "true", "1.2.3", "-", "9" * 30]))
)
def test_a_token_means_the_same_alone_and_among_others(texts: list[str]) -> None:
    tokens = [text.encode() for text in texts]
    ns, state = parse_microseconds(tokens)
    assert list(zip(ns.tolist(), state.tolist(), strict=True)) == [parse_one(token) for token in tokens]


@pytest.mark.parametrize(
    ("token", "state"),
    [
        (b"1", OK), (b'"1.5"', OK), (b"", MISSING), (b"null", MISSING), (b'""', MISSING), (b"NaN", WRONG),
        (b"Infinity", WRONG), (b'"N/A"', WRONG), (b"1e999999999", WRONG), (b"9" * 25, WRONG), (b"{}", WRONG),
        (b"0x10", WRONG), (b"1_000", WRONG), (b"\xff", WRONG), (b'"', WRONG), (b"4611686018427387.904", OK),
        (b"4611686018427387.905", WRONG), (b"1" + b"0" * 5000, WRONG),
    ],
)  # fmt: skip
def test_what_is_no_time_is_told_from_a_missing_one(token: bytes, state: int) -> None:
    assert parse_one(token)[1] == state
