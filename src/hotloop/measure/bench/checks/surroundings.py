"""Facts of the data's folder and of InfiniBand -> checks of where data is, how fast it reads, of the ports."""

from __future__ import annotations

import statistics

from hotloop.core.doctor import MachineCheck
from hotloop.core.findings import Value
from hotloop.measure.bench.checks import ResultMaker, machine_check
from hotloop.measure.bench.host import Host, Reading, file_system_of, format_bytes, listed, plural

NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "afs", "fuse.sshfs")
SLOW_READ_BYTES_PER_S = 50 << 20
"""Less than a single hard disk gives."""
SLOW_OPEN_NS = 5_000_000
ENOUGH_BYTES = 4 << 20
"""Less than this says how long a file takes, not how fast the storage is."""
KINDS = {
    "storage": "{speed}/s past the page cache ({size} in {files}), {opened}",
    "cached": "{speed}/s from the page cache, which could not be dropped; {opened}",
    "unknown": "{speed}/s, from the storage or the page cache (the kernel does not report which); {opened}",
}
"""Where the bytes of a reading came from, the most reliable first, and how its speed is described."""


@machine_check("data-folder", "data", "data folder")
def check_data_folder(host: Host, answer: ResultMaker) -> MachineCheck:
    if host.reading is None:
        return answer.unknown("no folder was given", fix="hotloop doctor --data FOLDER")
    kind = file_system_of(host, host.reading.folder)
    if kind is None:
        return answer.unknown("the kernel does not report its file system")
    measured = f"on {kind}"
    if kind in NETWORK_FILE_SYSTEMS or (kind.startswith("fuse") and kind != "fuseblk"):
        return answer.warning(
            f"{measured}, a network or user-space file system",
            why="opening a file costs a round trip, and the bandwidth is shared with other users",
            fix="pack small files into large ones, or copy the data to a local disk first",
            file_system=kind,
        )
    if kind in ("overlay", "overlayfs", "aufs"):
        return answer.warning(
            f"{measured}, inside the container's layers",
            why="files are looked up in every layer, and changing a file first copies it",
            fix="mount the data into the container (docker run -v FOLDER:/data)",
            file_system=kind,
        )
    note = "it uses host memory" if kind in ("tmpfs", "ramfs") else ""
    return answer.noted(measured, why=note, file_system=kind)


@machine_check("read-speed", "data", "data read speed")
def check_read_speed(host: Host, answer: ResultMaker) -> MachineCheck:
    reading = host.reading
    if reading is None:
        return answer.unknown("no folder was given", fix="hotloop doctor --data FOLDER")
    if reading.complaint and not reading.sampled_count:
        return answer.unknown(reading.complaint)
    if not reading.sampled_count:
        return answer.unknown(f"{reading.folder} contains no readable files")
    if reading.complaint and "did not finish" in reading.complaint:
        return answer.harmful(
            reading.complaint,
            why="a DataLoader that reads here would hang just as long",
            fix="check the mount and its server",
        )
    return _judge_speed(reading, answer)


def _judge_speed(reading: Reading, answer: ResultMaker) -> MachineCheck:
    opened_ns = statistics.median(reading.opens_ns) if reading.opens_ns else None
    values: dict[str, Value] = {}
    for one in KINDS:
        values |= {f"{one}_bytes": reading.bytes_by_kind[one], f"{one}_ns": reading.ns_by_kind[one]}
    values |= {
        "open_median_ns": None if opened_ns is None else round(opened_ns),
        "sampled_count": reading.sampled_count,
    }
    kind = next((one for one in KINDS if reading.bytes_by_kind[one] and reading.ns_by_kind[one]), None)
    if kind is None:
        return answer.unknown(f"nothing could be read from {reading.folder}")
    size_bytes = reading.bytes_by_kind[kind]
    speed = size_bytes / (reading.ns_by_kind[kind] * 1e-9)
    measured = KINDS[kind].format(
        speed=format_bytes(speed),
        size=format_bytes(size_bytes),
        files=plural(reading.sampled_count, "file"),
        opened=f"opening a file takes {_format_time(opened_ns)}",
    )
    if kind == "storage" and size_bytes >= ENOUGH_BYTES and speed < SLOW_READ_BYTES_PER_S:
        return answer.warning(
            measured,
            why="slower than a single hard disk; the first epoch may wait for it",
            fix="copy the data to a local disk, or read larger files in order",
            **values,
        )
    if opened_ns is not None and opened_ns > SLOW_OPEN_NS:
        return answer.warning(
            measured,
            why="with one sample per file, opening files may take longer than a step",
            fix="pack samples into large files, or copy the data to a local disk",
            **values,
        )
    return answer.good(measured, **values)


def _format_time(value_ns: float | None) -> str:
    """A short duration.

    >>> _format_time(8_500), _format_time(2_400_000)
    ('8.5 µs', '2.4 ms')
    """
    if value_ns is None:
        return "an unknown time"
    return f"{value_ns / 1e6:.1f} ms" if value_ns >= 1e6 else f"{value_ns / 1e3:.1f} µs"


@machine_check("infiniband", "network", "InfiniBand")
def check_infiniband(host: Host, answer: ResultMaker) -> MachineCheck:
    base = "sys/class/infiniband"
    ports = [(d, p) for d in host.names(base) for p in host.names(f"{base}/{d}/ports")]
    if not ports:
        return answer.good("none", devices_count=0)
    active: list[str] = []
    down: list[str] = []
    for device, port in ports:
        state = (host.read(f"{base}/{device}/ports/{port}/state") or "").partition(":")[2].strip()
        rate = host.read(f"{base}/{device}/ports/{port}/rate") or "rate unknown"
        (active if state == "ACTIVE" else down).append(f"{device} {rate}" if state == "ACTIVE" else f"{device}:{port}")
    measured = listed(active) or "no active port"
    values: dict[str, Value] = {"active_count": len(active), "down_count": len(down)}
    if down:
        return answer.warning(
            f"{measured}; not active: {listed(down)}",
            why="collectives use only active ports",
            fix="run ibstat to find out why a port is down",
            **values,
        )
    if host.locked_soft_bytes is not None and 0 <= host.locked_soft_bytes < 64 << 20:
        return answer.warning(
            f"{measured}; only {format_bytes(host.locked_soft_bytes)} of memory may be locked",
            why="the card needs locked memory; initialization fails without it",
            fix="ulimit -l unlimited (docker run --ulimit memlock=-1)",
            **values,
        )
    return answer.good(measured, **values)
