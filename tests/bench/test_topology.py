"""Texts of nvidia-smi and NCCL -> ways between devices, and what is not good about them. Never run on a device."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotloop.bench.topology import (
    Topology,
    expect_bytes_per_s,
    find_nvlink,
    judge_topology,
    parse_links,
    parse_matrix,
    parse_nccl_log,
    read_nccl_log,
    read_topology,
    tabulate_ways,
)
from hotloop.core.errors import UsageError

PCIE = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m\n"
    "GPU0\t X \tPIX\tPHB\tSYS\tPIX\t0-15\t0\n"
    "GPU1\tPIX\t X \tPHB\tSYS\tPIX\t0-15\t0\n"
    "GPU2\tPHB\tPHB\t X \tNODE\tPHB\t0-15\t0\n"
    "GPU3\tSYS\tSYS\tNODE\t X \tSYS\t16-31\t1\n"
    "NIC0\tPIX\tPIX\tPHB\tSYS\t X \n\n"
    "Legend:\n\n  X    = Self\n  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge\n"
)
SWITCHED = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-47\nGPU1\tNV18\t X \t48-95\n"


def links_text(name: str, active: int, inactive: int = 0, rate: str = "26.562") -> str:
    lines = [f"\t Link {number}: {rate} GB/s" for number in range(active)]
    lines += [f"\t Link {active + number}: <inactive>" for number in range(inactive)]
    return "".join(f"GPU {gpu}: {name} (UUID: GPU-{gpu})\n" + "\n".join(lines) + "\n" for gpu in range(2))


def switched(name: str, active: int, inactive: int = 0) -> Topology:
    return Topology(ways=parse_matrix(SWITCHED), links=parse_links(links_text(name, active, inactive)))


def test_the_matrix_of_devices_without_cards_and_affinities() -> None:
    ways = parse_matrix(PCIE)
    assert ways == {(0, 1): "PIX", (0, 2): "PHB", (1, 2): "PHB", (0, 3): "SYS", (1, 3): "SYS", (2, 3): "NODE"}
    rows = tabulate_ways(Topology(ways=ways))
    assert [(row["way"], row["pairs"]) for row in rows] == [("PIX", 1), ("PHB", 2), ("NODE", 1), ("SYS", 2)]


@pytest.mark.parametrize("text", ["", "No devices were found\n", "\tGPU0\tCPU Affinity\nGPU0\t X \t0-15\n"])
def test_a_matrix_without_pairs_is_empty_and_judged_by_nobody(text: str) -> None:
    assert parse_matrix(text) == {}
    assert judge_topology(Topology(ways=parse_matrix(text)), None) == []


def test_a_row_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="row GPU0 has 'ABC' under GPU1"):
        parse_matrix("\tGPU0\tGPU1\nGPU0\t X \tABC\n")


def test_through_the_cpu_is_not_good_and_the_worst_pair_is_named() -> None:
    (said,) = judge_topology(Topology(ways=parse_matrix(PCIE)), None)
    assert said.startswith("not good: 5 of 6 pairs of devices communicate through the CPU; devices 0 and 3 ")
    assert "(SYS)" in said


def test_links_of_each_device_add_up() -> None:
    links = parse_links(links_text("NVIDIA H200", 18))
    assert (links[1].name, links[1].active_count, links[1].inactive_count) == ("NVIDIA H200", 18, 0)
    assert links[1].bytes_per_s == pytest.approx(478.1e9, rel=1e-3)
    assert parse_links("") == {}


def test_a_fabric_that_gives_what_it_should_has_no_verdict() -> None:
    whole = switched("NVIDIA H200", 18)
    assert expect_bytes_per_s(whole) is not None
    assert judge_topology(whole, 400e9) == []
    (said,) = judge_topology(whole, 90e9)
    assert said.startswith("not good: large all-reduces reach 90 GB/s of 478 GB/s")


def test_missing_links_are_not_good() -> None:
    (inactive, _) = judge_topology(switched("NVIDIA H200", 17, inactive=1), None)
    assert "1 of 18 NVLinks of device 0 are inactive" in inactive
    (fewer, _) = judge_topology(switched("NVIDIA H200", 12), None)
    assert "12 NVLinks of 18" in fewer


def test_what_is_not_listed_is_unknown() -> None:
    assert find_nvlink("NVIDIA GeForce RTX 3090") is None
    assert find_nvlink("NVIDIA H100 NVL") is None
    links = parse_links(links_text("NVIDIA A100", 12))
    assert expect_bytes_per_s(Topology(ways=parse_matrix(PCIE), links=links)) is None
    assert judge_topology(switched("NVIDIA Tomorrow", 4), None) == []


LOG = """\
host:1:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.4<0>
host:1:9 [0] NCCL INFO Using network IB
host:1:9 [0] NCCL INFO NVLS multicast support is available on dev 0
host:1:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
host:1:9 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM
host:1:9 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0/GDRDMA
"""


def test_transports_in_the_log_of_nccl() -> None:
    log = parse_nccl_log(LOG)
    assert log.transports == {"P2P/CUMEM": 2, "NET/IB/0/GDRDMA": 1}
    assert log.network == "IB"
    assert judge_topology(Topology(ways=parse_matrix(SWITCHED), log=log), None) == []


def test_an_old_log_and_an_empty_one() -> None:
    old = parse_nccl_log("x NCCL INFO Channel 00 : 1[41000] -> 0[b000] via P2P/IPC\n")
    assert (old.transports, old.network) == ({"P2P/IPC": 1}, None)
    assert parse_nccl_log("x NCCL INFO Bootstrap\n").transports == {}


def test_host_memory_beside_nvlink_and_sockets_between_hosts_are_not_good() -> None:
    log = parse_nccl_log(
        "NCCL INFO Using network Socket\n"
        "NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct\n"
        "NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/Socket/0\n"
    )
    memory, sockets = judge_topology(Topology(ways=parse_matrix(SWITCHED), log=log), None)
    assert "SHM/direct/direct (host memory)" in memory
    assert "sockets (TCP)" in sockets


def test_a_log_must_be_of_nccl(tmp_path: Path) -> None:
    other = tmp_path / "train.log"
    other.write_text("step 1\n")
    with pytest.raises(UsageError, match="NCCL_DEBUG=INFO"):
        read_nccl_log(str(other))
    with pytest.raises(UsageError, match="No such file"):
        read_nccl_log(str(tmp_path / "none.log"))


def test_without_nvidia_smi_everything_is_unknown() -> None:
    topology = read_topology(program="no-such-program")
    assert topology.note is not None
    assert topology.note.startswith("nvidia-smi was not found")
    assert judge_topology(topology, 1e9) == []


def test_the_programs_output_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncase $1 in topo) printf '{SWITCHED}';; nvlink) cat {tmp_path}/links;; esac\n")
    (tmp_path / "links").write_text(links_text("NVIDIA H200", 18))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    topology = read_topology()
    assert topology.ways == {(0, 1): "NV18"}
    assert topology.links[0].active_count == 18
