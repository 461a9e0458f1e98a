"""What NVML says of the devices: sampled by hotloop's own process, never in the way, hostile files left out."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotloop.telemetry import devices
from hotloop.telemetry.devices import NAME, DeviceWatch, describe_devices, measure_busy_ratio


def unsupported(*_: Any) -> Any:
    raise RuntimeError("Not Supported")


def fake_nvml(**changes: Any) -> SimpleNamespace:
    answers: dict[str, Any] = {
        "NVML_TEMPERATURE_GPU": 0,
        "NVML_CLOCK_SM": 1,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{'ab'[handle] * 4}",
        "nvmlDeviceGetName": lambda handle: b"NVIDIA Test",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=3 * 2**30, total=8 * 2**30),
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=40, memory=5),
        "nvmlDeviceGetPowerUsage": lambda handle: 123_000,
        "nvmlDeviceGetEnforcedPowerLimit": unsupported,
        "nvmlDeviceGetTemperature": lambda handle, sensor: 61,
        "nvmlDeviceGetClockInfo": lambda handle, clock: 1_200,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x40,
    }
    return SimpleNamespace(**{**answers, **changes})


def watch_until(folder: Path, samples: int, variables: dict[str, str]) -> DeviceWatch:
    watch = DeviceWatch(folder, variables)
    watch.tick()
    end_s = time.monotonic() + 20
    path = folder / NAME
    while time.monotonic() < end_s and watch.failure is None:
        if path.is_file() and path.read_text().count("\n") >= samples:
            break
        time.sleep(0.01)
    watch.stop()
    return watch


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "INTERVAL_S", 0.005)


def test_samples_of_the_visible_device_become_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    watch = watch_until(tmp_path, 3, {"CUDA_VISIBLE_DEVICES": "1"})
    assert watch.failure is None
    sample = json.loads((tmp_path / NAME).read_text().splitlines()[0])
    (device,) = sample["devices"]
    assert device["index"] == 1
    assert device["power_limit_w"] is None, "what a device does not tell is unknown"
    assert measure_busy_ratio(tmp_path) == pytest.approx(0.4)
    described, warned = describe_devices(tmp_path)
    assert "GPU 1 (NVIDIA Test)" in described.message
    assert "a kernel ran 40% of the time, peak memory 3.0 of 8.0 GiB" in described.message
    assert "123 W" in described.message
    assert warned.level == "warning"
    assert warned.message == "GPU 1 was throttled in 100% of the samples: thermal limit (hardware slow-down)"


@pytest.mark.parametrize("changes", [{"nvmlInit": unsupported}, {"nvmlDeviceGetCount": lambda: 0}])
def test_nothing_without_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(**changes))
    watch = DeviceWatch(tmp_path, {})
    watch.tick()
    watch.stop()
    assert watch.failure is None
    assert list(tmp_path.iterdir()) == []
    assert describe_devices(tmp_path) == ()
    assert measure_busy_ratio(tmp_path) is None


def test_a_deleted_folder_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    watch = watch_until(tmp_path / "gone", 1, {})
    assert watch.failure is not None
    assert "No such file or directory" in watch.failure


def test_idle_devices_and_nonsense_are_left_out(tmp_path: Path) -> None:
    idle = {"devices": [{"index": 0, "utilization_ratio": 0.0, "name": "idle"}]}
    busy = {"devices": [{"index": 1, "utilization_ratio": 0.5, "name": "x" * 500, "power_w": "much"}, 7]}
    lines = ["{", "[" * 100_000, "null", '{"devices": 3}', '{"devices": [{"index": 2, "utilization_ratio": NaN}]}']
    (tmp_path / NAME).write_text("\n".join([*lines, json.dumps(idle), json.dumps(busy)]) + "\n")
    (only,) = describe_devices(tmp_path)
    assert only.message == f"GPU 1 ({'x' * 80}), 1 samples of NVML: a kernel ran 50% of the time"
