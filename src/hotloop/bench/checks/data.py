"""Facts of the data's folder -> checks of where it lies and how fast it reads."""

from __future__ import annotations

from hotloop.bench.host import Host, Reading, file_system_of, format_bytes, plural
from hotloop.bench.machine_check import ResultMaker, machine_check
from hotloop.core.doctor import MachineCheck
from hotloop.core.findings import Value

NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "afs", "fuse.sshfs")
SLOW_READ_BYTES_PER_S = 50 << 20
"""Less than a single hard disk gives."""
SLOW_OPEN_NS = 5_000_000
ENOUGH_BYTES = 4 << 20
"""Less than this says how long a file takes, not how fast the storage is."""


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
            why="a DataLoader that reads here would hang as long",
            fix="check the mount and its server",
        )
    return _judge_speed(reading, answer)


def _judge_speed(reading: Reading, answer: ResultMaker) -> MachineCheck:
    opened = f"opening a file takes {_format_time(reading.open_median_ns)}"
    values: dict[str, Value] = {
        "storage_bytes": reading.storage_bytes,
        "storage_ns": reading.storage_ns,
        "cached_bytes": reading.cached_bytes,
        "cached_ns": reading.cached_ns,
        "unknown_bytes": reading.unknown_bytes,
        "unknown_ns": reading.unknown_ns,
        "open_median_ns": reading.open_median_ns,
        "cached_before_ratio": reading.cached_before_ratio,
        "sampled_count": reading.sampled_count,
    }
    files = plural(reading.sampled_count, "file")
    if reading.storage_bytes and reading.storage_ns:
        speed = reading.storage_bytes / (reading.storage_ns * 1e-9)
        measured = (
            f"{format_bytes(speed)}/s past the page cache ({format_bytes(reading.storage_bytes)} in {files}), {opened}"
        )
        if reading.cached_before_ratio is not None:
            measured += f"; {reading.cached_before_ratio * 100:.0f}% of the sample was in the page cache before"
        enough = reading.storage_bytes >= ENOUGH_BYTES
        if enough and speed < SLOW_READ_BYTES_PER_S:
            return answer.warning(
                measured,
                why="slower than a single hard disk; the first epoch may wait for it",
                fix="copy the data to a local disk, or read larger files in order",
                **values,
            )
    elif reading.cached_bytes and reading.cached_ns:
        speed = reading.cached_bytes / (reading.cached_ns * 1e-9)
        measured = f"{format_bytes(speed)}/s from the page cache, which could not be dropped; {opened}"
    elif reading.unknown_bytes and reading.unknown_ns:
        speed = reading.unknown_bytes / (reading.unknown_ns * 1e-9)
        measured = (
            f"{format_bytes(speed)}/s, from the storage or the page cache (the kernel does not report which); {opened}"
        )
    else:
        return answer.unknown(f"nothing could be read from {reading.folder}")
    if reading.open_median_ns is not None and reading.open_median_ns > SLOW_OPEN_NS:
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
