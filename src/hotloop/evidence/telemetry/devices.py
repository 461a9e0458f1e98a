"""NVML's view of the GPUs while a training runs: samples into the run folder; use and lines of health from them.

hotloop's own process queries it, never the training's, about once a second, and only if nvidia-ml-py (the ``telemetry``
extra) and a driver are there. NVML's utilization is the share of its own sampling period in which at least one kernel
ran; it says nothing about how full the device was.
"""

from __future__ import annotations

import importlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from statistics import fmean as mean
from typing import Any

from hotloop.core.live import LiveDevice
from hotloop.core.report import Health

NAME = "devices.jsonl"
INTERVAL_S = 1.0
SPARSER_AFTER = 2_048
"""After this many samples, the interval is doubled, after as many more doubled again: a run of a month leaves about
20,000 lines."""
MOST_LINES = 65_536
"""More lines than this are not read."""
MOST_DEVICES = 64
LONGEST_LINE = 65_536
"""Bytes."""
OFTEN_RATIO = 0.05
"""A device that is slowed down in a smaller share of its samples is not worth a line."""
SLOWED_BY = {
    0x08: "hardware slow-down",
    0x20: "thermal limit (software slow-down)",
    0x40: "thermal limit (hardware slow-down)",
    0x80: "power supply limit (hardware power brake)",
}
"""Bits of nvmlClocksThrottleReasons (NVIDIA, NVML API reference) with which a device runs slower than it could."""
POWER_CAP = 0x04


class DeviceWatch:
    """Samples the NVIDIA devices that the training can see, in a thread of hotloop's own process.

    Nothing is opened before the first ``tick``. By then the training is running, so it neither waits for the driver nor
    inherits its files; and a driver that hangs holds up only this thread.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self._path = folder / NAME
        self._visible = variables.get("CUDA_VISIBLE_DEVICES")
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure: str | None = None
        """Why the samples end before the training did; None if they do not, and if there is no NVML."""

    def tick(self) -> None:
        """The training runs: begin, if that has not been done."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hotloop-devices", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)

    def _run(self) -> None:
        nvml, handles = open_devices(self._visible)
        if not handles:
            return
        start_s = time.monotonic()
        samples = 0
        activity = {index: SmActivity(nvml, handle) for index, handle in handles}
        while not self._over.wait(INTERVAL_S * (1 << (samples // SPARSER_AFTER))):
            samples += 1
            devices = [
                _read_device(nvml, index, handle) | {"sm_active_ratio": activity[index].read()}
                for index, handle in handles
            ]
            line = {"t_s": round(time.monotonic() - start_s, 3), "unix_s": round(time.time(), 3), "devices": devices}
            try:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
            except OSError as error:
                self.failure = f"cannot write {self._path}: {error.strerror}"
                return


def open_devices(visible: str | None) -> tuple[Any, list[tuple[int, Any]]]:
    """NVML and the handles of the devices that ``visible`` (CUDA_VISIBLE_DEVICES) names; no handle without NVML."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handles = [(index, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(nvml.nvmlDeviceGetCount())]
        uuids = [_text(nvml.nvmlDeviceGetUUID(handle)) for _, handle in handles]
    except Exception:  # no extra, no driver, no permission: a machine without telemetry is the usual case
        return None, []
    return nvml, [handles[index] for index in visible_devices(visible, uuids)][:MOST_DEVICES]


def visible_devices(variable: str | None, uuids: Sequence[str]) -> list[int]:
    """Numbers of the devices that CUDA_VISIBLE_DEVICES names; all of them if it is not set or not understood.

    >>> visible_devices("1,GPU-aa", ["GPU-aaaa", "GPU-bbbb"]), visible_devices(None, ["GPU-aaaa"])
    ([1, 0], [0])
    >>> visible_devices("", ["GPU-aaaa"]), visible_devices("MIG-1", ["GPU-aaaa"])
    ([], [0])
    """
    everything = list(range(len(uuids)))
    if variable is None:
        return everything
    found: list[int] = []
    for word in filter(None, (part.strip() for part in variable.split(","))):
        if word.isdecimal() and int(word) < len(uuids):
            found.append(int(word))
        elif word.startswith("GPU-"):
            found.extend(index for index, uuid in enumerate(uuids) if uuid.startswith(word))
        else:
            return found or everything
    return list(dict.fromkeys(found))


def _read_device(nvml: Any, index: int, handle: Any) -> dict[str, Any]:
    def ask(read: Callable[[], Any]) -> Any:
        try:
            return read()
        except Exception:  # not supported on this device, or not allowed: unknown
            return None

    memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    use = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    power_mw = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    limit_mw = ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    return {
        "index": index,
        "name": ask(lambda: _text(nvml.nvmlDeviceGetName(handle))),
        "utilization_ratio": None if use is None else use.gpu / 100,
        "memory_used_bytes": None if memory is None else memory.used,
        "memory_total_bytes": None if memory is None else memory.total,
        "power_w": None if power_mw is None else power_mw / 1000,
        "power_limit_w": None if limit_mw is None else limit_mw / 1000,
        "temperature_c": ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        "sm_clock_mhz": ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "slowed_by": ask(lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))),
    }


class SmActivity:
    """SM activity of one device between two readings: NVML's GPU performance monitoring, from Hopper on.

    ``NVML_GPM_METRIC_SM_UTIL`` is the percentage of SMs that were busy (NVML API reference, GPM enums), over the time
    between the two samples.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle, self._samples = nvml, handle, []
        try:
            if nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                self._samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
                nvml.nvmlGpmSampleGet(handle, self._samples[0])
        except Exception:  # an older driver, an older device, no permission
            self._samples = []

    def read(self) -> float | None:
        """Since the previous reading, 0..1; None if the device does not report it."""
        if not self._samples:
            return None
        nvml, (before, now) = self._nvml, self._samples
        try:
            nvml.nvmlGpmSampleGet(self._handle, now)
            asked = nvml.c_nvmlGpmMetricsGet_t()
            asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
            asked.sample1, asked.sample2 = before, now
            asked.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
            nvml.nvmlGpmMetricsGet(asked)
        except Exception:  # as for every other figure: not reported is unknown
            return None
        self._samples = [now, before]
        metric = asked.metrics[0]
        return None if metric.nvmlReturn else _number(metric.value / 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """Means over time of NVML's values in a span, and over the devices that did any work in it; 0..1."""

    utilization_ratio: float
    sm_active_ratio: float | None
    samples_count: int
    """Of the device with most of them."""


Rows = list[tuple[float, Mapping[str, Any]]]
"""For one device: the time that a sample represents in s, and its content. Its utilization is known."""


def read_device_use(path: Path, span_s: tuple[float, float] | None, last_bytes: int | None = None) -> DeviceUse | None:
    """Over a span of Unix times in s, or the entire recording if None; None if no device was seen to work.
    ``last_bytes``: reads only this much of the end of the file."""
    devices = _read_rows(path, span_s, last_bytes).values()
    busy = [_weigh(rows, "utilization_ratio") or 0.0 for rows in devices]
    active = [_weigh(rows, "sm_active_ratio") for rows, ratio in zip(devices, busy, strict=True) if ratio > 0]
    if not active:
        return None
    known = [value for value in active if value is not None]
    return DeviceUse(
        utilization_ratio=sum(busy) / len(active),
        sm_active_ratio=sum(known) / len(known) if len(known) == len(active) else None,
        samples_count=max(len(rows) for rows, ratio in zip(devices, busy, strict=True) if ratio > 0),
    )


def _read_rows(path: Path, span_s: tuple[float, float] | None = None, last_bytes: int | None = None) -> dict[int, Rows]:
    """By the device's index. A sample represents the time since the previous sample: a long run is sampled more
    sparsely at its end. Malformed lines are left out."""
    found: dict[int, Rows] = {}
    before_s: float | None = None
    for sample in _samples(path, last_bytes):
        clock_s = _number(sample.get("unix_s"))
        took_s = INTERVAL_S if before_s is None or clock_s is None else max(0.0, clock_s - before_s)
        before_s = clock_s
        if span_s is not None and (clock_s is None or not span_s[0] <= clock_s <= span_s[1]):
            continue
        for device in _devices_of(sample):
            if isinstance(device.get("index"), int) and _number(device.get("utilization_ratio")) is not None:
                found.setdefault(device["index"], []).append((took_s, device))
    return found


def _weigh(rows: Rows, key: str) -> float | None:
    """Mean over time of the samples' values; None if no sample has one."""
    known = [(took_s, value) for took_s, device in rows if (value := _number(device.get(key))) is not None]
    whole_s = sum(took_s for took_s, _ in known)
    return sum(took_s * value for took_s, value in known) / whole_s if whole_s > 0 else None


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def describe_devices(folder: Path) -> tuple[Health, ...]:
    """A line for each device that was busy, and a warning for each that ran slower than it could."""
    lines = []
    for index, devices in sorted(_read_busy(folder).items()):
        lines.append(Health(level="info", message=_describe(index, devices)))
        lines.extend(Health(level="warning", message=message) for message in _slow_downs(index, devices))
    return tuple(lines)


def _read_busy(folder: Path) -> dict[int, list[Mapping[str, Any]]]:
    """The samples of each device that was busy, from its first busy one on."""
    found = {}
    for index, rows in _read_rows(folder / NAME).items():
        devices = list(dropwhile(lambda device: not device["utilization_ratio"], (device for _, device in rows)))
        if devices:
            found[index] = devices
    return found


def _values(devices: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [value for device in devices if (value := _number(device.get(key))) is not None]


def read_newest_devices(folder: Path) -> tuple[LiveDevice, ...]:
    """The last complete and valid sample; empty without one. Reads only the end of the file."""
    newest: list[dict[str, Any]] = []
    for sample in _samples(folder / NAME, LONGEST_LINE):
        newest = _devices_of(sample) or newest
    return tuple(_make_live(device) for device in newest if isinstance(device.get("index"), int))


def _make_live(device: Mapping[str, Any]) -> LiveDevice:
    name = device.get("name")
    used, total = (_number(device.get(key)) for key in ("memory_used_bytes", "memory_total_bytes"))
    return LiveDevice(
        index=int(device["index"]),
        name=name[:80] if isinstance(name, str) else None,
        utilization_ratio=_number(device.get("utilization_ratio")),
        memory_used_bytes=None if used is None else int(used),
        memory_total_bytes=None if total is None else int(total),
        power_w=_number(device.get("power_w")),
        temperature_c=_number(device.get("temperature_c")),
    )


def _samples(path: Path, last_bytes: int | None = None) -> Iterator[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            if last_bytes is not None:
                file.seek(max(0, file.seek(0, os.SEEK_END) - last_bytes))  # a line that this cuts is not JSON
            for _ in range(MOST_LINES):
                line = file.readline(LONGEST_LINE)
                if not line:
                    return
                try:
                    sample = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(sample, dict):
                    yield sample
    except OSError:
        return


def _devices_of(sample: Mapping[str, Any]) -> list[dict[str, Any]]:
    devices = sample.get("devices")
    return [one for one in devices[:MOST_DEVICES] if isinstance(one, dict)] if isinstance(devices, list) else []


def _number(value: Any) -> float | None:
    """A finite number that is not negative, else None."""
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e18
    return float(value) if known else None


def _describe(index: int, devices: Sequence[Mapping[str, Any]]) -> str:
    parts = [f"a kernel ran {mean(_values(devices, 'utilization_ratio')):.0%} of the time"]
    if used := _values(devices, "memory_used_bytes"):
        total = _values(devices, "memory_total_bytes")
        of = f" of {max(total) / 2**30:.1f}" if total else ""
        parts.append(f"peak memory {max(used) / 2**30:.1f}{of} GiB of all programs")
    if power := _values(devices, "power_w"):
        limit = _values(devices, "power_limit_w")
        parts.append(f"{mean(power):.0f}{f' of {max(limit):.0f}' if limit else ''} W")
    if warmth := _values(devices, "temperature_c"):
        parts.append(f"at most {max(warmth):.0f} °C")
    capped = _share_slowed(devices, POWER_CAP)
    if capped >= OFTEN_RATIO:
        parts.append(f"at its power limit in {capped:.0%} of the samples")
    name = str(devices[0].get("name") or "unnamed")[:80]
    return f"GPU {index} ({name}), {len(devices)} samples of NVML: {', '.join(parts)}"


def _slow_downs(index: int, devices: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for bit, why in SLOWED_BY.items():
        share = _share_slowed(devices, bit)
        if share >= OFTEN_RATIO:
            yield f"GPU {index} was throttled in {share:.0%} of the samples: {why}"


def _share_slowed(devices: Sequence[Mapping[str, Any]], bit: int) -> float:
    """Of the samples that say why the device runs slower than it could, the share with this reason."""
    told = [reasons for device in devices if isinstance(reasons := device.get("slowed_by"), int)]
    return sum(bool(reasons & bit) for reasons in told) / max(1, len(told))
