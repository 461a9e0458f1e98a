from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hotloop.core.errors import UsageError
from hotloop.show.export.points import METRICS
from hotloop.show.export.targets.prometheus import draw_text, open_prometheus
from tests.export.live_runs import make_device, make_rank, make_run, snapshot_of

WHOLE = make_run(make_rank(), make_rank(rank=1), devices=(make_device(),), steps_total=5000)


def parse(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_the_client_library_reads_every_point_back() -> None:
    snapshot = snapshot_of(WHOLE)
    read = parse(draw_text(snapshot))
    for point in snapshot.points:
        labels = {"run": "one", **{key.replace(".", "_"): value for key, value in point.attributes.items()}}
        assert (labels, float(point.value)) in read[point.metric.prometheus_name]
    assert sum(map(len, read.values())) == len(snapshot.points)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_no_fault() -> None:
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=draw_text(snapshot_of(WHOLE)),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_hostile_names_stay_values_of_labels() -> None:
    name = 'a"} 1\nevil_total 5\n# "\\\ud800'
    read = parse(draw_text(snapshot_of(make_run(make_rank(host=name, metrics={name: 1.0}), name='x"y\\z'))))
    assert "evil_total" not in read
    assert set(read) <= {metric.prometheus_name for metric in METRICS}
    assert read["hotloop_training_metric"][0][0]["host"] == name.replace("\ud800", "?")


@pytest.mark.parametrize("where", ["", "metrics.txt", "gone/metrics.prom", "nobody.invalid:9100", ":99999"])
def test_a_place_that_cannot_be_is_refused(where: str) -> None:
    with pytest.raises(UsageError, match="--export prometheus="):
        open_prometheus(where, {})


def test_metrics_are_served_on_localhost() -> None:
    sender = open_prometheus(":0", {})
    try:
        sender.send(snapshot_of(WHOLE))
        url = f"http://127.0.0.1:{sender.port}"  # type: ignore[attr-defined]
        with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert parse(answer.read().decode())["hotloop_training_steps_total"][0][1] == 1234
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/../etc/passwd", timeout=5)
    finally:
        sender.close()


def test_clients_that_say_nothing_do_not_use_up_the_server() -> None:
    sender = open_prometheus("127.0.0.1:0", {})
    sender.send(snapshot_of(WHOLE))
    address = ("127.0.0.1", sender.port)  # type: ignore[attr-defined]
    before = threading.active_count()
    silent = [socket.create_connection(address) for _ in range(20)]
    try:
        refused = silent[-1]
        refused.settimeout(5)
        assert refused.recv(1) == b""  # turned away
        assert threading.active_count() - before <= 8
    finally:
        for one in silent:
            one.close()
        sender.close()
