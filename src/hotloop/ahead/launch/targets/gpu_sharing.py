"""gpu-sharing: how many trainings a GPU can hold, as a configuration of NVIDIA's device plugin or of MIG.

Jobs by memory: the device's memory over the run's peak. Jobs by time: 1 over the share of time for which the run keeps
the device busy. For time-slicing, the smaller number is used; MIG gives each job its own memory and multiprocessors.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import Any

from hotloop.ahead.launch.request import LaunchRequest
from hotloop.ahead.launch.target import LaunchTarget, draw_documents
from hotloop.ahead.launch.yaml_text import Noted, draw_yaml
from hotloop.core.errors import UsageError

MEMORY_MARGIN = 1.1
"""Factor over the measured peak, for fragmentation and longer batches."""
GIB = 1 << 30
_SEVENTHS = {7: 1, 3: 2, 2: 3, 1: 7}
"""Instances of a profile on one GPU -> its sevenths of the multiprocessors: 1g x 7, 2g x 3, 3g x 2, 7g x 1."""
MIG_PROFILES: dict[str, dict[int, tuple[str, int]]] = {
    "a100-40g-sxm": {7: ("1g.5gb", 5), 3: ("2g.10gb", 10), 2: ("3g.20gb", 20), 1: ("7g.40gb", 40)},
    "a100-80g-sxm": {7: ("1g.10gb", 10), 3: ("2g.20gb", 20), 2: ("3g.40gb", 40), 1: ("7g.80gb", 80)},
    "a100-80g-pcie": {7: ("1g.10gb", 10), 3: ("2g.20gb", 20), 2: ("3g.40gb", 40), 1: ("7g.80gb", 80)},
    "h100-80g-sxm": {7: ("1g.10gb", 10), 3: ("2g.20gb", 20), 2: ("3g.40gb", 40), 1: ("7g.80gb", 80)},
    "h100-pcie": {7: ("1g.10gb", 10), 3: ("2g.20gb", 20), 2: ("3g.40gb", 40), 1: ("7g.80gb", 80)},
    "h200": {7: ("1g.18gb", 18), 3: ("2g.35gb", 35), 2: ("3g.71gb", 71), 1: ("7g.141gb", 141)},
}
"""Instances on one GPU -> profile and its memory (GB): https://docs.nvidia.com/datacenter/tesla/mig-user-guide/."""


class GpuSharing(LaunchTarget):
    id = "gpu-sharing"
    summary = "how many such training jobs fit on one GPU: a time-slicing configuration, or a MIG one with --share mig"
    takes = frozenset({"plan", "gpu", "run", "share", "name"})
    needs = ("gpu", "gpu_bytes")
    submit = ("kubectl", "create", "-f")

    def find_warnings(self, request: LaunchRequest) -> tuple[str, ...]:
        return ()  # no training is started

    def write(self, request: LaunchRequest) -> str:
        return _write_mig(request) if request.share == "mig" else _write_slices(request)


@dataclass(frozen=True, slots=True)
class _Fit:
    peak_bytes: int
    busy_ratio: float
    total_bytes: int

    @property
    def by_memory(self) -> int:
        return floor(self.total_bytes / (MEMORY_MARGIN * self.peak_bytes))

    @property
    def by_time(self) -> int:
        return floor(1 / max(self.busy_ratio, 1e-3))

    def __str__(self) -> str:
        return (
            f"by memory {self.by_memory}: {self.total_bytes / GIB:.1f} GiB over {MEMORY_MARGIN:g} x "
            f"{self.peak_bytes / GIB:.2f} GiB; by time {self.by_time}: one run keeps the GPU {self.busy_ratio:.0%} busy"
        )


def _fit(request: LaunchRequest) -> _Fit:
    peak_bytes, busy_ratio = request.measured.peak_bytes, request.measured.busy_ratio
    if peak_bytes is None or busy_ratio is None or request.gpu_bytes is None:
        missing = "device memory" if peak_bytes is None else "how busy the GPU is (the extra `telemetry`)"
        raise UsageError(
            f"--target gpu-sharing needs a run that measured {missing}: give --run RUN, a recorded run on a GPU"
        )
    return _Fit(peak_bytes, busy_ratio, request.gpu_bytes)


def _write_slices(request: LaunchRequest) -> str:
    fit = _fit(request)
    jobs = min(fit.by_memory, fit.by_time)
    if jobs < 2:
        raise UsageError(f"sharing a {request.gpu} gains nothing: {fit}; run one training job per GPU")
    config: dict[str, Any] = {
        "version": "v1",
        "sharing": {
            "timeSlicing": {
                "failRequestsGreaterThanOne": Noted(True, "two slices are not twice the speed: refuse such requests"),
                "resources": [{"name": "nvidia.com/gpu", "replicas": Noted(jobs, str(fit))}],
            }
        },
    }
    return draw_documents(
        "Time-slicing: the jobs' memory is not isolated, and each job gets a share of the time.\n"
        "Start: kubectl create -n gpu-operator -f FILE, then name it in the ClusterPolicy's devicePlugin.config.\n"
        "Each pod asks for nvidia.com/gpu: 1; fractions are invalid.",
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": request.name},
            "data": {"any": draw_yaml(config)},
        },
    )


def _write_mig(request: LaunchRequest) -> str:
    fit = _fit(request)
    profiles = MIG_PROFILES.get(request.gpu or "")
    if profiles is None:
        raise UsageError(f"--share mig: MIG profiles are known for {', '.join(MIG_PROFILES)}, not for {request.gpu}")
    fitting = [
        count
        for count, (_, memory_gb) in sorted(profiles.items(), reverse=True)
        if memory_gb * 1e9 >= MEMORY_MARGIN * fit.peak_bytes and _SEVENTHS[count] / 7 >= fit.busy_ratio
    ]
    if not fitting or fitting[0] == 1:
        raise UsageError(f"MIG cannot split a {request.gpu} for this run: {fit}")
    profile = profiles[fitting[0]][0]
    config = {
        "version": "v1",
        "mig-configs": {
            request.name: [
                {
                    "devices": "all",
                    "mig-enabled": True,
                    "mig-devices": Noted({profile: fitting[0]}, f"{fitting[0]} jobs per GPU; {fit}"),
                }
            ]
        },
    }
    return draw_documents(
        "MIG: every job has its own memory and multiprocessors.\n"
        "Start: kubectl create -n gpu-operator -f FILE, name it in the ClusterPolicy's migManager.config, then\n"
        f"kubectl label node NODE nvidia.com/mig.config={request.name}",
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": request.name},
            "data": {"config.yaml": draw_yaml(config)},
        },
    )
