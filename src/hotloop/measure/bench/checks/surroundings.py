"""Facts of the data's folder and of InfiniBand -> checks of where the data is, and of the ports."""

from __future__ import annotations

from hotloop.core.doctor import MachineCheck
from hotloop.core.findings import Value
from hotloop.measure.bench.checks import ResultMaker, machine_check
from hotloop.measure.bench.host import Host, file_system_of, format_bytes, listed

NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "afs", "fuse.sshfs")


@machine_check("data-folder", "data", "data folder")
def check_data_folder(host: Host, answer: ResultMaker) -> MachineCheck:
    if host.data_folder is None:
        return answer.unknown("no folder was given", fix="hotloop doctor --data FOLDER")
    kind = file_system_of(host, host.data_folder)
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
