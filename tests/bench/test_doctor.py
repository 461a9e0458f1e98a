import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hotloop.core.doctor import MachineCheck
from hotloop.measure.bench.checks import HostCheck, ResultMaker
from hotloop.measure.bench.checks.devices import check_torch
from hotloop.measure.bench.doctor import has_harm, run_checks
from hotloop.measure.bench.host import Host, ask_probe, parse_gpus
from hotloop.measure.bench.variables import judge_variables

GIB = 1 << 30

TORCH: dict[str, Any] = {
    "version": "2.13.0",
    "cuda": None,
    "hip": None,
    "debug": False,
    "build_type": "Release",
    "mkl": True,
    "onednn": True,
    "threads": 4,
    "import_ns": 2_000_000_000,
}


def make_facts(**changes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "schema": "hotloop.machine/1",
        "python": "3.11.7",
        "cpu_flags": ["avx2", "avx512f"],
        "affinity_count": 4,
        "affinity_after_torch_count": 4,
        "torch": TORCH,
        "torch_error": None,
        "openmp": ["libgomp"],
        "accelerator": {"kind": None, "devices": [], "warning": None},
        "distributed": {"available": True, "backends": {"gloo": True, "nccl": False}, "nccl_version": None},
    }
    return facts | changes


CUDA_PAIR = {
    "kind": "cuda",
    "devices": [{"index": i, "name": "NVIDIA H200", "total_bytes": 140 * GIB, "capability": [9, 0]} for i in range(2)],
    "warning": None,
    "architectures": ["sm_80", "sm_90"],
}
NCCL = {"available": True, "backends": {"gloo": True, "nccl": True}, "nccl_version": "2.28.3"}


def make_root(folder: Path, files: Mapping[str, str]) -> Path:
    healthy = {
        "proc/loadavg": "0.10 0.20 0.30 1/100 5\n",
        "proc/meminfo": "MemTotal: 33554432 kB\nMemAvailable: 25165824 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
        "proc/self/cgroup": "0::/job\n",
        "proc/self/mountinfo": "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:5 / /data rw - nfs4 server:/x rw\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver": "acpi-cpufreq\n",
        "sys/class/net/eth0/operstate": "up\n",
        "sys/class/net/eth0/device/vendor": "0x15b3\n",
    }
    for name, text in (healthy | dict(files)).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def make_host(folder: Path, files: Mapping[str, str] | None = None, **changes: Any) -> Host:
    given: dict[str, Any] = {
        "root": make_root(folder, files or {}),
        "interpreter": "/env/bin/python",
        "facts": make_facts(),
        "affinity_count": 4,
        "files_soft_count": 65536,
        "files_hard_count": 65536,
        "locked_soft_bytes": -1,
        "shm_total_bytes": 16 * GIB,
        "shm_free_bytes": 16 * GIB,
        "data_folder": "/home/data",
    }
    return Host(**given | changes)


def answer_of(host: Host, check_id: str) -> MachineCheck:
    found = [c for c in run_checks(host) if c.id == check_id]
    assert len(found) == 1, [c.id for c in run_checks(host)]
    return found[0]


def test_a_healthy_machine_is_good_in_every_respect(tmp_path: Path) -> None:
    checks = run_checks(make_host(tmp_path))
    assert [(c.id, c.measured, c.why) for c in checks if c.status != "good"] == []
    assert not has_harm(checks)
    assert len(checks) > 15


def test_a_machine_that_tells_nothing_is_unknown_and_never_harmful(tmp_path: Path) -> None:
    checks = run_checks(Host(root=tmp_path, complaint="python gave no facts"))
    assert {c.status for c in checks} <= {"unknown", "good"}
    assert all(c.why for c in checks if c.status == "unknown")
    # What is good here is what an absent file means: no swap is not claimed, no InfiniBand is.
    assert {c.id for c in checks if c.status == "good"} == {"infiniband", "variables"}


@pytest.mark.parametrize("text", ["", "nonsense", "\x00\xff", "-1", "9" * 18, "max max", "cpu x y z"])
def test_odd_files_of_the_kernel_never_raise(tmp_path: Path, text: str) -> None:
    names = [
        "proc/loadavg",
        "proc/meminfo",
        "proc/self/cgroup",
        "proc/self/mountinfo",
        "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq",
        "sys/fs/cgroup/job/cpu.max",
        "sys/fs/cgroup/job/memory.max",
        "sys/class/infiniband/mlx5_0/ports/1/state",
    ]
    checks = run_checks(make_host(tmp_path, dict.fromkeys(names, text)))
    assert not any("the check failed" in c.why for c in checks)
    assert not has_harm(checks)


@pytest.mark.parametrize("odd", [None, [], "x", {"version": 3}, {"threads": "many"}])
def test_odd_facts_of_the_probe_never_raise(tmp_path: Path, odd: Any) -> None:
    facts = dict.fromkeys(make_facts(), odd)
    checks = run_checks(make_host(tmp_path, facts=facts))
    assert not has_harm([c for c in checks if c.id != "torch"])


def test_a_question_that_fails_costs_only_its_own_answer(tmp_path: Path) -> None:
    def fail(host: Host, answer: ResultMaker) -> MachineCheck:
        raise RuntimeError("odd machine")

    broken = HostCheck(id="broken", group="cpu", title="broken", ask=fail)
    checks = run_checks(make_host(tmp_path), (broken, check_torch))
    assert [(c.id, c.status) for c in checks] == [("torch", "good"), ("broken", "unknown")]
    assert "odd machine" in checks[1].why


def test_the_worst_comes_first(tmp_path: Path) -> None:
    host = make_host(tmp_path, shm_total_bytes=64 << 20, shm_free_bytes=64 << 20, files_soft_count=512)
    assert [c.status for c in run_checks(host)][:3] == ["harmful", "warning", "good"]


def cuda_host(folder: Path, files: Mapping[str, str] | None = None, **changes: Any) -> Host:
    accelerator = changes.pop("accelerator", CUDA_PAIR)
    facts = make_facts(accelerator=accelerator, distributed=NCCL, torch=TORCH | {"cuda": "13.0"})
    return make_host(folder, {"dev/nvidia0": "", "dev/nvidia1": ""} | dict(files or {}), facts=facts, **changes)


IB = "sys/class/infiniband/mlx5_0/ports/1"
GROUP = "sys/fs/cgroup/job"
GOVERNOR, DRIVER = (f"sys/devices/system/cpu/cpu0/cpufreq/scaling_{name}" for name in ("governor", "driver"))
IMPORT_ERROR = {"missing": False, "message": "ImportError: libcudart.so.13"}
NO_MODULE = {"missing": True, "message": "No module named 'torch'"}


def memory_files(used_gib: float, cached_gib: int) -> dict[str, str]:
    stat = f"anon 1\ninactive_file {cached_gib * GIB}\n"
    used = str(int(used_gib * GIB))
    return {f"{GROUP}/memory.max": str(8 * GIB), f"{GROUP}/memory.current": used, f"{GROUP}/memory.stat": stat}


@pytest.mark.parametrize(
    ("check_id", "status", "words", "files", "changes"),
    [
        (
            "threads",
            "harmful",
            "4 threads on 2 cores (the container's quota is 2)",
            {f"{GROUP}/cpu.max": "200000 100000\n"},
            {},
        ),
        (
            "threads",
            "good",
            "2 threads",
            {},
            {"facts": make_facts(torch=TORCH | {"threads": 2})},
        ),  # one a physical core
        ("threads", "warning", "1 thread ", {}, {"facts": make_facts(torch=TORCH | {"threads": 1})}),
        (
            "threads",
            "warning",
            "64 threads",
            {},
            {"facts": make_facts(accelerator=CUDA_PAIR, distributed=NCCL, torch=TORCH | {"threads": 64})},
        ),
        (
            "thread-binding",
            "harmful",
            "unset OMP_PROC_BIND",
            {},
            {
                "facts": make_facts(affinity_after_torch_count=1),
                "environment": {"OMP_PROC_BIND": "true", "KMP_AFFINITY": "compact"},
            },
        ),
        ("shared-memory", "harmful", "", {}, {"shm_total_bytes": 64 << 20, "shm_free_bytes": 64 << 20}),
        ("shared-memory", "harmful", "", {}, {"shm_total_bytes": 8 * GIB, "shm_free_bytes": 10 << 20}),
        ("shared-memory", "warning", "", {}, {"shm_total_bytes": 512 << 20, "shm_free_bytes": 512 << 20}),
        ("memory", "good", "4 GiB free of 8 GiB (the container's limit)", memory_files(7, 3), {}),
        ("memory", "harmful", "", memory_files(7.95, 0), {}),
        (
            "quota",
            "warning",
            "40% of the periods",
            {f"{GROUP}/cpu.max": "400000 100000", f"{GROUP}/cpu.stat": "nr_periods 1000\nnr_throttled 400\n"},
            {},
        ),
        ("frequency", "warning", "", {GOVERNOR: "powersave", DRIVER: "acpi-cpufreq"}, {}),
        ("frequency", "good", "", {GOVERNOR: "powersave", DRIVER: "intel_pstate"}, {}),
        ("accelerator", "harmful", "not built for it", {"dev/nvidia0": ""}, {}),
        ("accelerator", "warning", "", {"dev/nvidia0": ""}, {"environment": {"CUDA_VISIBLE_DEVICES": ""}}),
        (
            "infiniband",
            "good",
            "mlx5_0 400 Gb/sec (4X NDR)",
            {f"{IB}/state": "4: ACTIVE\n", f"{IB}/rate": "400 Gb/sec (4X NDR)\n"},
            {},
        ),
        ("infiniband", "warning", "", {f"{IB}/state": "1: DOWN\n"}, {}),
        ("data-folder", "warning", "nfs4", {}, {"data_folder": "/data/images"}),
        ("data-folder", "good", "ext4", {}, {"data_folder": "/database"}),
        ("torch", "harmful", "libcudart", {}, {"facts": make_facts(torch=None, torch_error=IMPORT_ERROR)}),
        ("torch", "unknown", "", {}, {"facts": make_facts(torch=None, torch_error=NO_MODULE)}),
    ],
)
def test_what_a_check_says_of_a_machine(
    tmp_path: Path, check_id: str, status: str, words: str, files: dict[str, str], changes: dict[str, Any]
) -> None:
    check = answer_of(make_host(tmp_path, files, **changes), check_id)
    assert check.status == status
    assert words in f"{check.measured} {check.fix}"


def test_a_healthy_pair_of_gpus_is_good(tmp_path: Path) -> None:
    host = cuda_host(
        tmp_path,
        gpus=parse_gpus("0, NVIDIA H200, 143771, 4, 16, 16\n1, NVIDIA H200, 143771, 4, 16, 16\n"),
    )
    assert [c for c in run_checks(host) if c.status != "good"] == []
    assert answer_of(host, "accelerator").measured == "2 x NVIDIA H200, 140 GiB each"


def test_a_gpu_without_kernels_in_this_build_is_harmful(tmp_path: Path) -> None:
    old = cuda_host(tmp_path, accelerator=CUDA_PAIR | {"architectures": ["sm_70", "sm_80"]})
    assert answer_of(old, "architectures").status == "harmful"
    later = cuda_host(tmp_path, accelerator=CUDA_PAIR | {"architectures": ["sm_70", "compute_80"]})
    assert answer_of(later, "architectures").status == "good"


def test_a_busy_and_narrow_gpu_is_told(tmp_path: Path) -> None:
    rows = "0, NVIDIA H200, 1000, 500, 8, 16\n1, NVIDIA H200, 1000, 1, [N/A], 16\n"
    host = cuda_host(tmp_path, gpus=parse_gpus(rows))
    assert "GPU 0" in answer_of(host, "gpu-memory").measured
    assert answer_of(host, "pcie-width").measured == "GPU 0: x8 of x16"


# Variables


def effects_of(host: Host) -> dict[str, str | None]:
    return {effect.name: effect.level for effect in judge_variables(host)}


def test_a_debugging_variable_is_harmful_where_it_acts_and_idle_elsewhere(tmp_path: Path) -> None:
    environment = {"CUDA_LAUNCH_BLOCKING": "1", "NCCL_P2P_DISABLE": "1"}
    assert effects_of(cuda_host(tmp_path, environment=environment)) == {
        "CUDA_LAUNCH_BLOCKING": "harmful",
        "NCCL_P2P_DISABLE": "harmful",
    }
    assert effects_of(make_host(tmp_path, environment=environment)) == dict.fromkeys(environment)
    blind = make_host(tmp_path, facts={}, environment=environment)
    assert effects_of(blind) == dict.fromkeys(environment, "warning")


def test_infiniband_switched_off_is_harmful_only_where_there_is_some(tmp_path: Path) -> None:
    off = {"NCCL_IB_DISABLE": "1"}
    assert effects_of(cuda_host(tmp_path / "a", environment=off)) == {"NCCL_IB_DISABLE": None}
    there = cuda_host(tmp_path / "b", {"sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE"}, environment=off)
    assert effects_of(there) == {"NCCL_IB_DISABLE": "harmful"}


@pytest.mark.parametrize(
    ("name", "value", "level"),
    [
        ("GLOO_SOCKET_IFNAME", "eth0", "fine"),
        ("GLOO_SOCKET_IFNAME", "eth", "harmful"),
        ("NCCL_SOCKET_IFNAME", "eth", "fine"),
        ("NCCL_SOCKET_IFNAME", "=eth", "harmful"),
        ("NCCL_SOCKET_IFNAME", "^docker,lo", "fine"),
        ("NCCL_SOCKET_IFNAME", "^eth", "harmful"),
        ("TORCH_NCCL_BLOCKING_WAIT", "1", "harmful"),
        ("NCCL_TREE_THRESHOLD", "0", None),
        ("TORCH_NUM_THREADS", "8", None),
        ("KMP_BLOCKTIME", "0", None),
        ("GOMP_CPU_AFFINITY", "0-3", "fine"),
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:32", "warning"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "fine"),
        ("TOKENIZERS_PARALLELISM", "true", "warning"),
        ("TOKENIZERS_PARALLELISM", "false", "fine"),
        ("ONEDNN_MAX_CPU_ISA", "AVX2", "harmful"),
        ("ONEDNN_MAX_CPU_ISA", "DEFAULT", "fine"),
        ("NCCL_MAX_NCHANNELS", "not a number", "fine"),
        ("PYTHONTRACEMALLOC", "\udcff", "fine"),
    ],
)
def test_values_of_variables(tmp_path: Path, name: str, value: str, level: str | None) -> None:
    found = effects_of(cuda_host(tmp_path, environment={name: value}))
    assert found.get(name, "fine") == level


def test_values_are_shown_without_secrets_and_names_are_kept(tmp_path: Path) -> None:
    environment = {"LD_PRELOAD": "/no/such/hf_abcdefghijkl.so", "TOKENIZERS_PARALLELISM": "true"}
    shown = " ".join(c.measured for c in run_checks(make_host(tmp_path, environment=environment)))
    assert "hf_abcdefghijkl" not in shown
    assert "TOKENIZERS_PARALLELISM=true" in shown


# The probe's answer


def write_program(folder: Path, text: str) -> Path:
    program = folder / "program.py"
    program.write_text(text)
    return program


@pytest.mark.parametrize(
    ("text", "timeout_s", "said"),
    [
        ("raise SystemExit('no way')", 60.0, "exit code 1): no way"),
        ("print('hello')", 60.0, "it printed nothing"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 60.0, "killed by SIGKILL"),
        ("import time; time.sleep(60)", 1.0, "took longer than 1 s"),
    ],
)
def test_a_probe_that_fails_is_one_line(tmp_path: Path, text: str, timeout_s: float, said: str) -> None:
    program = write_program(tmp_path, text)
    facts, complaint = ask_probe(sys.executable, os.environ, program=program, timeout_s=timeout_s)
    assert facts == {}
    assert said in (complaint or "")
    assert "\n" not in (complaint or "\n")


def test_an_interpreter_that_is_not_there_is_one_line() -> None:
    facts, complaint = ask_probe("/no/such/python", os.environ)
    assert (facts, complaint) == ({}, "/no/such/python could not be started: No such file or directory")
