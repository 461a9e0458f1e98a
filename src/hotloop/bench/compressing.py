"""What compressors cost, send and lose -> what an exchange takes over links of given rates, beside a dense one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hotloop.core.benchmarks import Row
from hotloop.core.errors import UsageError

RATE = re.compile(r"(\d+(?:\.\d+)?)(k|m|g)bit")
FACTORS = {"k": 1e3, "m": 1e6, "g": 1e9}
FLOAT_BYTES = 4


def parse_rates(text: str) -> dict[str, float]:
    """``100mbit,1gbit`` -> bytes per second by name. Raises UsageError.

    >>> parse_rates("100mbit,10gbit")
    {'100mbit': 12500000.0, '10gbit': 1250000000.0}
    """
    found = {}
    for word in (word.strip().lower() for word in text.split(",")):
        match = RATE.fullmatch(word)
        if match is None or float(match[1]) <= 0:
            raise UsageError(f"--links {text}: {word!r} is no rate; give rates such as 100mbit,1gbit,25gbit")
        found[word] = float(match[1]) * FACTORS[match[2]] / 8
    return found


def tabulate_exchanges(rows: Sequence[Row], rates: Mapping[str, float]) -> list[dict[str, int | float | str]]:
    """For each row of the first table and link: the time on the wire, and the speed-up with compressing and restoring.

    What a rank sends between two ranks passes the link once, at its full rate and without latency.
    """
    found = []
    for row in rows:
        one: dict[str, int | float | str] = {"elements": _number(row, "elements"), "method": str(row["method"])}
        dense_bytes = FLOAT_BYTES * _number(row, "elements")
        for name, bytes_per_s in rates.items():
            wire_ns = dense_bytes * _number(row, "sent_ratio") / bytes_per_s * 1e9
            whole_ns = _number(row, "compress_ns") + wire_ns + _number(row, "restore_ns")
            one[f"wire_{name}_ns"] = round(wire_ns)
            one[f"speedup_{name}"] = dense_bytes / bytes_per_s * 1e9 / whole_ns
        found.append(one)
    return found


def _number(row: Row, name: str) -> float:
    value = row[name]
    assert isinstance(value, int | float)
    return value
