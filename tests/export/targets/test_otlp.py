from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from hotloop.core.errors import UsageError
from hotloop.show.export.target import SendFailed
from hotloop.show.export.targets.otlp import build_request, open_otlp
from tests.export.conftest import Endpoint, answer_with
from tests.export.live_runs import make_device, make_rank, make_run, snapshot_of

WHOLE = snapshot_of(make_run(make_rank(), make_rank(rank=1), devices=(make_device(),), steps_total=5000))


def parse(request: dict[str, Any]) -> ExportMetricsServiceRequest:
    return json_format.Parse(json.dumps(request), ExportMetricsServiceRequest())


def attributes_of(one: Any) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in one.attributes}


def test_the_official_messages_read_every_point_back() -> None:
    (of_resource,) = parse(build_request(WHOLE, {"service.name": "s"})).resource_metrics
    assert attributes_of(of_resource.resource) == {"service.name": "s", "hotloop.run.name": "one"}
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for metric in of_resource.scope_metrics[0].metrics:
        assert metric.description
        points = metric.sum.data_points or metric.gauge.data_points
        for one in points:
            assert one.time_unix_nano == 2000 * 10**9
            value = one.as_int if one.WhichOneof("value") == "as_int" else one.as_double
            found.setdefault(metric.name, []).append((attributes_of(one), value))
    for point in WHOLE.points:
        assert (dict(point.attributes), point.value) in found[point.metric.name]
    assert sum(map(len, found.values())) == len(WHOLE.points)


def test_steps_are_a_monotonic_sum_since_the_run_began() -> None:
    (of_resource,) = parse(build_request(WHOLE, {})).resource_metrics
    (steps,) = [one for one in of_resource.scope_metrics[0].metrics if one.name == "hotloop.training.steps"]
    assert steps.unit == "{step}"
    assert steps.sum.is_monotonic
    assert steps.sum.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    assert steps.sum.data_points[0].start_time_unix_nano == 1000 * 10**9


def test_the_variables_say_where_and_as_whom(endpoint: Endpoint) -> None:
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint.url + "/base/",
        "OTEL_EXPORTER_OTLP_HEADERS": "api-key=s%20ecret, x-team = blue",
        "OTEL_SERVICE_NAME": "trainer",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test,service.name=other",
    }
    open_otlp("", variables).send(WHOLE)
    assert endpoint.paths == ["/base/v1/metrics"]
    headers = {name.lower(): value for name, value in endpoint.headers[0].items()}
    assert (headers["api-key"], headers["x-team"]) == ("s ecret", "blue")
    assert headers["content-type"] == "application/json"
    resource = attributes_of(parse(endpoint.posted[0]).resource_metrics[0].resource)
    assert (resource["service.name"], resource["deployment.environment"]) == ("trainer", "test")


@pytest.mark.parametrize(
    ("body", "is_refused"),
    [
        (b'{"partialSuccess": {"rejectedDataPoints": "3", "errorMessage": "secret"}}', True),
        (b'{"partialSuccess": {"rejectedDataPoints": 0}}', False),
        (b'{"partialSuccess": {"rejectedDataPoints": ["x"]}}', False),
        (b"\xff\xfe garbage", False),
        (b"[" * 60_000, False),
    ],
)
def test_points_that_the_collector_refused_are_lost(endpoint: Endpoint, body: bytes, is_refused: bool) -> None:
    endpoint.answer = answer_with(200, body)
    sender = open_otlp(endpoint.url, {})
    if not is_refused:
        sender.send(WHOLE)
        return
    with pytest.raises(SendFailed, match=r"^the collector refused points$"):
        sender.send(WHOLE)


@pytest.mark.parametrize("url", ["ftp://x/", "nowhere", "http:///x", "http://h:99999", "http://h/a b"])
def test_an_endpoint_that_is_no_url_is_refused_without_being_told(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        open_otlp("", {"OTEL_EXPORTER_OTLP_ENDPOINT": url})
    assert url not in str(refused.value)


@pytest.mark.parametrize("headers", ["secret", "=secret", "a=b,secret", "a=x%0d%0aInjected: secret"])
def test_headers_that_make_no_sense_are_refused_without_being_told(headers: str) -> None:
    with pytest.raises(UsageError, match="OTEL_EXPORTER_OTLP_HEADERS") as refused:
        open_otlp("http://localhost:4318", {"OTEL_EXPORTER_OTLP_HEADERS": headers})
    assert "secret" not in str(refused.value)
