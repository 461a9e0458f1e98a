"""What a compressor's cost and bytes come to over a link."""

import pytest

from hotloop.bench.figures import parse_rates, tabulate_exchanges
from hotloop.core.errors import UsageError

ROW = {"elements": 1_000_000, "method": "bf16", "compress_ns": 10_000_000, "restore_ns": 6_000_000, "sent_ratio": 0.5}


def test_a_slow_link_wins_and_a_fast_one_loses() -> None:
    (found,) = tabulate_exchanges([ROW], parse_rates("100mbit,10gbit"))
    # 4 MB dense: 320 ms and 3.2 ms; half of it and 16 ms of computing
    assert found["wire_100mbit_ns"] == 160_000_000
    assert found["speedup_100mbit"] == pytest.approx(320 / 176)
    assert found["speedup_10gbit"] == pytest.approx(3.2 / 17.6)


@pytest.mark.parametrize("text", ["fast", "0gbit", "100", "-1mbit", "1gbit,"])
def test_what_is_no_rate_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(UsageError, match="is no rate; give rates such as 100mbit"):
        parse_rates(text)
