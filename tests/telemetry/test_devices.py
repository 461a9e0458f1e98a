"""What NVML says of the devices: sampled by hotloop's own process, never in the way, hostile files left out."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotloop.evidence.telemetry import devices
from hotloop.evidence.telemetry.devices import NAME, DeviceWatch, describe_devices, read_device_use


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


# ---- how much of the devices was used


def write_series(path: Path, *samples: tuple[float, dict[int, tuple[float, float | None]]]) -> None:
    lines = [
        {
            "unix_s": unix_s,
            "devices": [
                {"index": index, "utilization_ratio": busy, "sm_active_ratio": active}
                for index, (busy, active) in devices.items()
            ],
        }
        for unix_s, devices in samples
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_use_of_a_span_is_the_mean_over_time(tmp_path: Path) -> None:
    write_series(
        tmp_path / NAME,
        (100.0, {0: (0.0, 0.0)}),  # loading, before the steady steps
        (101.0, {0: (0.9, 0.5)}),
        (102.0, {0: (0.6, 0.3)}),
        (104.0, {0: (0.3, 0.1)}),  # sampled half as often: stands for two seconds
        (105.0, {0: (1.0, 1.0)}),  # after the last step
    )
    used = read_device_use(tmp_path / NAME, (100.5, 104.5))
    assert used is not None
    # (0.9 x 1 + 0.6 x 1 + 0.3 x 2) / 4, and (0.5 + 0.3 + 0.1 x 2) / 4
    assert used.utilization_ratio == pytest.approx(0.525)
    assert used.sm_active_ratio == pytest.approx(0.25)
    assert used.samples_count == 3
    assert read_device_use(tmp_path / NAME, (200.0, 300.0)) is None
    last_line = (tmp_path / NAME).read_text().splitlines()[-1]
    end = read_device_use(tmp_path / NAME, None, last_bytes=len(last_line) + 20)
    assert end is not None
    assert (end.utilization_ratio, end.samples_count) == (1.0, 1), "the line that is cut is left out"
    assert read_device_use(tmp_path / "none", None) is None


def test_sm_activity_comes_from_two_samples_of_the_monitor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    metrics = SimpleNamespace(metrics=[SimpleNamespace(metricId=None, value=0.0, nvmlReturn=0)])

    def get_metrics(asked: Any) -> None:
        assert asked.numMetrics == 1
        assert asked.metrics[0].metricId == 2
        assert asked.sample1 is not asked.sample2
        asked.metrics[0].value = 37.5

    monitor = {
        "NVML_GPM_METRICS_GET_VERSION": 1,
        "NVML_GPM_METRIC_SM_UTIL": 2,
        "nvmlGpmQueryDeviceSupport": lambda handle: SimpleNamespace(isSupportedDevice=handle == 0),
        "nvmlGpmSampleAlloc": lambda: object(),
        "nvmlGpmSampleGet": lambda handle, sample: taken.append(handle),
        "c_nvmlGpmMetricsGet_t": lambda: metrics,
        "nvmlGpmMetricsGet": get_metrics,
    }
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(**monitor))
    watch_until(tmp_path, 2, {})
    first, second = json.loads((tmp_path / NAME).read_text().splitlines()[0])["devices"]
    assert first["sm_active_ratio"] == 0.375
    assert second["sm_active_ratio"] is None, "not supported there"
    assert set(taken) == {0}
    metrics.metrics[0].nvmlReturn = 3
    folder = tmp_path / "refused"
    folder.mkdir()
    watch_until(folder, 1, {})
    assert json.loads((folder / NAME).read_text().splitlines()[0])["devices"][0]["sm_active_ratio"] is None
