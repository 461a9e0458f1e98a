"""The kernel's table of network interfaces -> what each carried, and how fast it may be."""

from __future__ import annotations

import os


def network_counters(device_table: bytes, speeds: dict[str, int | None]) -> dict[str, dict[str, int | None]]:
    """Bytes received and sent by each network interface, and its nominal speed in bytes per second.

    ``device_table`` is the text of /proc/net/dev; ``speeds`` remembers the speeds: asking a driver takes long.
    """
    found: dict[str, dict[str, int | None]] = {}
    for line in device_table.decode("ascii", "replace").splitlines()[2:34]:
        name, _, rest = line.partition(":")
        fields = rest.split()
        if len(fields) < 9:
            continue
        name = name.strip()
        if name not in speeds:
            speeds[name] = interface_speed(name)
        found[name] = {
            "rx_bytes": int(fields[0]),
            "tx_bytes": int(fields[8]),
            "speed_bytes_per_s": speeds[name],
        }
    return found


def interface_speed(name: str, root: str = "/sys/class/net") -> int | None:
    """Bytes per second; None where no hardware stands behind it: one end of a virtual cable, as in every container,
    states 10 Gbit/s whatever carries it. A bond or a VLAN has the interfaces below it."""
    folder = f"{root}/{name}"
    try:
        if not any(entry == "device" or entry.startswith("lower_") for entry in os.listdir(folder)):
            return None
        with open(f"{folder}/speed") as file:
            megabits_per_s = int(file.read())
    except (OSError, ValueError):
        return None
    return megabits_per_s * 125_000 if megabits_per_s > 0 else None
