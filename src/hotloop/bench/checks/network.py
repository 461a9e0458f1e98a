"""Facts of the network's interfaces -> checks of their speed and state."""

from __future__ import annotations

from hotloop.bench.host import Host, format_bytes, listed
from hotloop.bench.machine_check import ResultMaker, machine_check
from hotloop.core.doctor import MachineCheck
from hotloop.core.findings import Value


@machine_check("interfaces", "network", "network interfaces")
def check_interfaces(host: Host, answer: ResultMaker) -> MachineCheck:
    base = "sys/class/net"
    found: list[str] = []
    speeds: list[int] = []
    for name in host.names(base):
        if name == "lo" or not host.exists(f"{base}/{name}/device"):
            continue
        if host.read(f"{base}/{name}/operstate") not in ("up", "unknown"):
            continue
        speed = host.read(f"{base}/{name}/speed") or ""
        if speed.isdigit() and int(speed) > 0:
            speeds.append(int(speed))
            found.append(f"{name} {int(speed) / 1000:g} Gbit/s")
        else:
            found.append(f"{name}, speed unknown")
    if not found:
        return answer.unknown("no active hardware interface is visible (usual in containers)")
    hosts = host.environment.get("SLURM_NNODES", "1")
    several = hosts.isdigit() and int(hosts) > 1
    values: dict[str, Value] = {"interfaces": [*found], "fastest_mbit_per_s": max(speeds, default=None)}
    if several and len(speeds) == len(found) and max(speeds) <= 1000:
        return answer.warning(
            listed(found),
            why=f"{hosts} hosts synchronise gradients over at most {max(speeds) / 1000:g} Gbit/s",
            fix="synchronise less data or less often (compression, accumulation), or use a faster network",
            **values,
        )
    if not speeds:
        return answer.unknown(f"{listed(found)}: the driver does not report it (usual in virtual machines)")
    return answer.good("; ".join(found[:4]), **values)


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
            why="the card needs locked memory; initialisation fails without it",
            fix="ulimit -l unlimited (docker run --ulimit memlock=-1)",
            **values,
        )
    return answer.good(measured, **values)
