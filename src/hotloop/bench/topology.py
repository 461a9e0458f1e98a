"""Texts of nvidia-smi and NCCL's log -> how the devices of this host reach each other, and whether that is good.

Three formats, each as its program prints it: the matrix of ``nvidia-smi topo -m``, the links of ``nvidia-smi nvlink
-s``, the channels of NCCL_DEBUG=INFO. What a text does not say is unknown: no verdict follows from it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotloop.core.benchmarks import Row
from hotloop.core.errors import UsageError

MOST_BYTES = 64 << 20
"""Of a log; more is left unread."""
TIMEOUT_S = 10.0
WAYS: Mapping[str, str] = {
    "NV#": "NVLink",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the CPU's PCIe host bridge",
    "NODE": "several PCIe host bridges of one NUMA node",
    "SYS": "the interconnect between the CPU sockets",
}
"""Legend of ``nvidia-smi topo -m``, quickest first."""
POOR_WAYS = ("PHB", "NODE", "SYS")
"""Between devices of one host, through the CPU: not good."""
LOW_RATIO = 0.5
"""Of the fabric's own rate. A choice: collectives of large messages reach more than half of a healthy link."""

_CELL = re.compile(r"X|NV\d{1,3}|PIX|PXB|PHB|NODE|SYS")
_LINK = re.compile(r"Link (\d+): (?:([\d.]+) GB/s|<?inactive>?)", re.I)
_GPU = re.compile(r"GPU (\d+): (.*?)(?: \(UUID.*)?$")
_CHANNEL = re.compile(r"NCCL INFO Channel \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\](?: \[(?:send|receive)\])? via (\S+)")
_USING = re.compile(r"NCCL INFO Using network (\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLinks:
    """NVLinks of one device, one direction."""

    name: str
    active_count: int
    inactive_count: int
    bytes_per_s: float
    """Sum over the active links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLog:
    """What NCCL says that it uses."""

    transports: Mapping[str, int]
    """Channels by transport: P2P/IPC, P2P/CUMEM, SHM/direct, NET/IB/0/GDRDMA, NET/Socket ..."""
    network: str | None
    """IB, Socket, or a plugin's; None where the log does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Everything that is known; empty and None where it was not."""

    ways: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """Way between two devices, lower index first: NV18, PIX, PXB, PHB, NODE, SYS."""
    links: Mapping[int, DeviceLinks] = field(default_factory=dict)
    log: DeviceLog | None = None
    note: str | None = None
    """Why the devices' links are unknown."""


def parse_matrix(text: str) -> dict[tuple[int, int], str]:
    """Way between every two GPUs in the output of ``nvidia-smi topo -m``; cards and affinities are passed over.

    Raises ValueError where a row does not fit its heading.

    >>> parse_matrix("\\tGPU0\\tGPU1\\tNIC0\\nGPU0\\t X \\tNV18\\tPXB\\nGPU1\\tNV18\\t X \\tSYS\\n")
    {(0, 1): 'NV18'}
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    heads: list[str] | None = None
    found: dict[tuple[int, int], str] = {}
    for line in plain.splitlines():
        words = line.split()
        is_heading = words[:1] == ["GPU0"] and (len(words) == 1 or not _CELL.fullmatch(words[1]))
        if heads is None and is_heading:
            heads = words
        elif heads is not None and words and (match := re.fullmatch(r"GPU(\d+)", words[0])):
            for head, cell in zip(heads, words[1:], strict=False):
                other = re.fullmatch(r"GPU(\d+)", head)
                if other is None:
                    break
                if not _CELL.fullmatch(cell):
                    raise ValueError(f"row GPU{match[1]} has {cell!r} under {head}")
                first, second = sorted((int(match[1]), int(other[1])))
                if first != second:
                    found[(first, second)] = cell
    return found


def parse_links(text: str) -> dict[int, DeviceLinks]:
    """NVLinks of every device in the output of ``nvidia-smi nvlink -s``."""
    rates: dict[tuple[int, str], list[float]] = {}
    for line in text.splitlines():
        if (head := _GPU.match(line.strip())) is not None:
            device = rates.setdefault((int(head[1]), head[2]), [])
        elif rates and (link := _LINK.search(line)) is not None:
            device.append(float(link[2] or 0.0) * 1e9)
    return {
        number: DeviceLinks(
            name=name,
            active_count=len(known) - known.count(0.0),
            inactive_count=known.count(0.0),
            bytes_per_s=sum(known),
        )
        for (number, name), known in rates.items()
    }


def parse_nccl_log(text: str) -> DeviceLog:
    """Transports in a log of NCCL_DEBUG=INFO, of one rank or of several in one file."""
    network = _USING.search(text)
    return DeviceLog(
        transports=dict(Counter(_CHANNEL.findall(text)).most_common()), network=None if network is None else network[1]
    )


def read_nccl_log(path: str) -> DeviceLog:
    """Raises UsageError where the file cannot be read or holds no line of NCCL's."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"--nccl-log {path}: {error.strerror}; give a log of a run with NCCL_DEBUG=INFO") from error
    if "NCCL INFO" not in text:
        raise UsageError(f"--nccl-log {path}: no line of NCCL's; record it with NCCL_DEBUG=INFO")
    return parse_nccl_log(text)


def read_topology(log: DeviceLog | None = None, program: str = "nvidia-smi") -> Topology:
    """What nvidia-smi says on this host."""
    path = shutil.which(program)
    if path is None:
        return Topology(log=log, note="nvidia-smi was not found: links between devices are unknown")
    texts = []
    for words in (("topo", "-m"), ("nvlink", "-s")):
        try:
            done = subprocess.run(
                [path, *words], capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Topology(log=log, note=f"nvidia-smi {' '.join(words)} failed: {type(error).__name__}")
        texts.append(done.stdout if done.returncode == 0 else "")
    try:
        ways = parse_matrix(texts[0])
    except ValueError as error:
        return Topology(links=parse_links(texts[1]), log=log, note=f"nvidia-smi topo -m was not understood: {error}")
    note = None if ways or texts[0].strip() else "nvidia-smi topo -m gave no matrix"
    return Topology(ways=ways, links=parse_links(texts[1]), log=log, note=note)


def tabulate_ways(topology: Topology) -> list[Row]:
    """Number of device pairs by way, quickest first."""
    counts = Counter(_kind(way) for way in topology.ways.values())
    return [{"way": kind, "through": WAYS[kind], "pairs": counts[kind]} for kind in WAYS if counts[kind]]


def expect_bytes_per_s(topology: Topology) -> tuple[float, str] | None:
    """What one device can send to the others of its host, and where that figure is from; None where it is unknown."""
    if not topology.links:
        return None
    if any(_kind(way) != "NV#" for way in topology.ways.values()):
        return None  # the slowest pair's way limits a ring, and PCIe's generation is not in these texts
    active = [one for one in topology.links.values() if one.active_count]
    if len(active) < len(topology.links):
        return None
    least = min(active, key=lambda one: one.bytes_per_s)
    return least.bytes_per_s, f"{least.active_count} active NVLinks of {least.name}, by nvidia-smi nvlink -s"


def judge_topology(topology: Topology, reached_bytes_per_s: float | None) -> list[str]:
    """What is not good about the devices' links, one sentence each; ``reached`` is the bus bandwidth of large messages.

    Empty where nothing is wrong or nothing is known.
    """
    faults = []
    poor = {pair: way for pair, way in topology.ways.items() if _kind(way) in POOR_WAYS}
    if poor:
        (first, second), way = min(poor.items(), key=lambda item: (-list(WAYS).index(_kind(item[1])), item[0]))
        faults.append(
            f"not good: {len(poor)} of {len(topology.ways)} pairs of devices communicate through the CPU; devices "
            f"{first} and {second} through {WAYS[way]} ({way}); place ranks that communicate most behind one switch"
        )
    faults += _judge_links(topology)
    faults += _judge_log(topology)
    expected = expect_bytes_per_s(topology)
    if expected is not None and reached_bytes_per_s is not None and reached_bytes_per_s < LOW_RATIO * expected[0]:
        faults.append(
            f"not good: large all-reduces reach {reached_bytes_per_s / 1e9:.0f} GB/s of {expected[0] / 1e9:.0f} GB/s "
            f"({expected[1]})"
        )
    return faults


def _judge_links(topology: Topology) -> list[str]:
    faults = []
    for number, one in topology.links.items():
        known = find_nvlink(one.name)
        if one.active_count and one.inactive_count:
            faults.append(
                f"not good: {one.inactive_count} of {one.active_count + one.inactive_count} NVLinks of device {number} "
                "are inactive; see nvidia-smi nvlink -e and the fabric manager"
            )
        elif known is not None and 0 < one.active_count < known["links"]:
            faults.append(
                f"not good: device {number} ({one.name}) has {one.active_count} NVLinks of {known['links']} "
                f"({known['source']})"
            )
    return faults


def _judge_log(topology: Topology) -> list[str]:
    log = topology.log
    if log is None:
        return []
    faults = []
    linked = [pair for pair, way in topology.ways.items() if _kind(way) == "NV#"]
    by_memory = [name for name in log.transports if name.startswith("SHM")]
    if by_memory and linked:
        faults.append(
            f"not good: NCCL uses {by_memory[0]} (host memory) although devices are joined by NVLink; unset "
            "NCCL_P2P_DISABLE, and check NCCL_P2P_LEVEL and the container's IPC settings"
        )
    if log.network == "Socket" and any(name.startswith("NET/Socket") for name in log.transports):
        faults.append(
            "not good: NCCL sends between hosts through sockets (TCP); if the hosts have InfiniBand or RoCE, check "
            "NCCL_IB_DISABLE, NCCL_IB_HCA and that libibverbs is in the container"
        )
    return faults


def find_nvlink(device_name: str) -> dict[str, Any] | None:
    """The row of fabrics.toml for a device; None for one that is not listed, or that sits in a PCIe slot.

    >>> find_nvlink("NVIDIA H200")["links"], find_nvlink("NVIDIA H100 PCIe")
    (18, None)
    """
    name = device_name.upper()
    words = re.findall(r"[A-Z]+\d+", name)
    if re.search(r"PCIE|NVL\b", name):
        return None
    text = Path(__file__).with_name("fabrics.toml").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = tomllib.loads(text)["nvlink"]
    return next((row for row in rows if any(word in row["devices"] for word in words)), None)


def _kind(way: str) -> str:
    return "NV#" if way.startswith("NV") else way
