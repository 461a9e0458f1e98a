"""otlp: OpenTelemetry metrics as OTLP/HTTP JSON (OTLP 1.5, JSON Protobuf encoding)."""

from __future__ import annotations

import json
import socket
import urllib.parse
from collections.abc import Mapping
from typing import Any

from hotloop import __version__
from hotloop.core.errors import UsageError
from hotloop.core.frames import decode_object
from hotloop.show.export.points import Point, Snapshot, group_points
from hotloop.show.export.target import TIMEOUT_S, Poster, Sender, SendFailed, Target, check_url

ENDPOINT, METRICS_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
HEADERS, METRICS_HEADERS = "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS"
CERTIFICATES = ("OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE")
TIMEOUTS = ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
SERVICE_NAME, RESOURCE_ATTRIBUTES = "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"
DEFAULT_ENDPOINT = "http://localhost:4318"
CUMULATIVE = 2
"""AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE."""


def build_request(snapshot: Snapshot, resource: Mapping[str, str]) -> dict[str, Any]:
    """An ExportMetricsServiceRequest: times are strings of ns since 1970, and 64-bit integers are strings too."""
    time_ns = round(snapshot.wall_s * 1e9)
    start_ns = round((snapshot.run.started_wall_s or snapshot.wall_s) * 1e9)
    metrics = []
    for metric, held in group_points(snapshot):
        points = [_build_point(one, time_ns) for one in held]
        entry: dict[str, Any] = {"name": metric.name, "unit": metric.unit, "description": metric.help}
        if metric.is_counter:
            counted = [{**one, "startTimeUnixNano": str(min(start_ns, time_ns))} for one in points]
            entry["sum"] = {"dataPoints": counted, "aggregationTemporality": CUMULATIVE, "isMonotonic": True}
        else:
            entry["gauge"] = {"dataPoints": points}
        metrics.append(entry)
    attributes = _build_attributes({**resource, "hotloop.run.name": snapshot.run.name})
    scope = {"scope": {"name": "hotloop", "version": __version__}, "metrics": metrics}
    return {"resourceMetrics": [{"resource": {"attributes": attributes}, "scopeMetrics": [scope]}]}


def _build_point(point: Point, time_ns: int) -> dict[str, Any]:
    value = {"asInt": str(point.value)} if isinstance(point.value, int) else {"asDouble": point.value}
    return {"attributes": _build_attributes(point.attributes), "timeUnixNano": str(time_ns), **value}


def _build_attributes(attributes: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()]


class _Collector:
    """An OTLP endpoint. Its response is read for the points that it refused, and for nothing else."""

    def __init__(self, poster: Poster, headers: Mapping[str, str], resource: Mapping[str, str]) -> None:
        self._poster = poster
        self._headers = {**headers, "Content-Type": "application/json", "User-Agent": f"hotloop/{__version__}"}
        self._resource = resource

    def send(self, snapshot: Snapshot) -> None:
        body = json.dumps(build_request(snapshot, self._resource)).encode()
        answer = decode_object(self._poster.post(body, self._headers)) or {}
        partial = answer.get("partialSuccess")
        refused = partial.get("rejectedDataPoints") if isinstance(partial, dict) else None
        if str(refused or 0).isdecimal() and int(str(refused or 0)[:18]) > 0:
            raise SendFailed("the collector refused points")

    def close(self) -> None: ...


def open_otlp(where: str, variables: Mapping[str, str]) -> Sender:
    """``where`` is a base URL, as OTEL_EXPORTER_OTLP_ENDPOINT, and goes before the variables."""
    base, source = (where, "the URL of --export otlp=") if where else (variables.get(ENDPOINT), ENDPOINT)
    url = (base or DEFAULT_ENDPOINT).rstrip("/") + "/v1/metrics"
    if not where and variables.get(METRICS_ENDPOINT):  # empty is as if it were not there
        url, source = variables[METRICS_ENDPOINT], METRICS_ENDPOINT
    cafile = next((variables[name] for name in CERTIFICATES if variables.get(name)), None)
    wanted_s = next((s for name in TIMEOUTS if (s := _read_ms(variables, name)) is not None), TIMEOUT_S)
    headers = {name.lower(): value for key in (HEADERS, METRICS_HEADERS) for name, value in _read_pairs(variables, key)}
    resource = {"host.name": socket.gethostname(), **dict(_read_pairs(variables, RESOURCE_ATTRIBUTES))}
    service = variables.get(SERVICE_NAME) or resource.get("service.name") or "hotloop"
    poster = Poster(check_url(url, source), cafile=cafile, timeout_s=min(TIMEOUT_S, wanted_s))
    return _Collector(poster, headers, {**resource, "service.name": service})


def _read_ms(variables: Mapping[str, str], name: str) -> float | None:
    """Milliseconds as seconds; anything but a positive integer is treated as unset."""
    text = variables.get(name, "").strip()
    return int(text) / 1000 if text.isdecimal() and 0 < int(text) < 1 << 40 else None


def _read_pairs(variables: Mapping[str, str], name: str) -> list[tuple[str, str]]:
    """``key=value,key=value``, percent-encoded (W3C Baggage). Raises UsageError, without the text in it."""
    pairs = []
    for number, part in enumerate(filter(None, map(str.strip, variables.get(name, "").split(","))), 1):
        key, separator, value = (urllib.parse.unquote(one).strip() for one in part.partition("="))
        if not separator or not key.isascii() or not key or any(ord(one) < 32 for one in key + value):
            raise UsageError(f"{name}: part {number} is not KEY=VALUE; write key=value,key=value, percent-encoded")
        pairs.append((key, value))
    return pairs


TARGET = Target(
    id="otlp",
    summary="OpenTelemetry: OTLP over HTTP as JSON; OTEL_* variables apply",
    where="URL (default: OTEL_EXPORTER_OTLP_ENDPOINT)",
    open=open_otlp,
)
