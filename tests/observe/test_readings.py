"""What an interface says of its speed, and when it is believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotloop.core.machine import interface_speed


@pytest.mark.parametrize(
    ("beside", "speed", "expected"),
    [
        (["device"], "1000", 125_000_000),
        (["lower_eth0"], "20000", 2_500_000_000),  # a bond: the sum of the interfaces below it
        ([], "10000", None),  # one end of a virtual cable
        (["device"], "-1", None),
        (["device"], "", None),
    ],
)
def test_a_speed_without_hardware_behind_it_is_unknown(
    tmp_path: Path, beside: list[str], speed: str, expected: int | None
) -> None:
    folder = tmp_path / "net0"
    folder.mkdir()
    (folder / "speed").write_text(speed)
    for name in beside:
        (folder / name).mkdir()
    assert interface_speed("net0", str(tmp_path)) == expected


def test_an_interface_that_is_gone_has_none(tmp_path: Path) -> None:
    assert interface_speed("gone", str(tmp_path)) is None
