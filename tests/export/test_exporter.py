from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from hotloop.export import exporter as module
from hotloop.export.exporter import MOST_WAITING, Exported, Exporter, describe_exports, exports_to_json
from hotloop.export.points import Snapshot
from hotloop.export.target import SendFailed

from .live_runs import make_run, snapshot_of

ONE = snapshot_of(make_run())
POINTS = len(ONE.points)


class FakeSender:
    """Fails as often as it is told, and may be held up."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.sent: list[Snapshot] = []
        self.is_held = threading.Event()
        self.is_held.set()
        self.is_closed = False

    def send(self, snapshot: Snapshot) -> None:
        self.is_held.wait(10)
        if self.failures:
            raise self.failures.pop(0)
        self.sent.append(snapshot)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT_S", 0.01)


def run_exporter(sender: FakeSender, count: int, sent_count: int) -> Exported:
    """Offers ``count`` snapshots and stops when ``sent_count`` of them have arrived."""
    exporter = Exporter("fake", sender)
    exporter.start()
    for _ in range(count):
        exporter.offer(ONE)
    until_s = time.monotonic() + 5
    while len(sender.sent) < sent_count and time.monotonic() < until_s:
        time.sleep(0.005)
    return exporter.stop(5.0)


def test_everything_is_sent_and_counted() -> None:
    sender = FakeSender()
    exported = run_exporter(sender, 10, 10)
    assert exported == Exported(target="fake", sent_count=10 * POINTS, lost_count=0, reason=None)
    assert sender.is_closed


def test_a_failure_that_may_pass_is_tried_again() -> None:
    sender = FakeSender(SendFailed("HTTP 503", may_retry=True), SendFailed("HTTP 503", may_retry=True))
    exported = run_exporter(sender, 3, 3)
    assert (exported.sent_count, exported.lost_count) == (3 * POINTS, 0)


@pytest.mark.parametrize("failure", [SendFailed("HTTP 400", may_retry=False), ZeroDivisionError()])
def test_a_failure_that_stays_costs_its_points(failure: Exception) -> None:
    exported = run_exporter(FakeSender(failure), 3, 2)
    assert (exported.sent_count, exported.lost_count) == (2 * POINTS, POINTS)
    assert exported.reason in ("HTTP 400", "a bug in hotloop: ZeroDivisionError")


def test_a_target_that_hangs_holds_up_nobody_and_every_point_is_counted() -> None:
    sender = FakeSender()
    sender.is_held.clear()
    exporter = Exporter("fake", sender)
    exporter.start()
    before_s = time.monotonic()
    for _ in range(10 * MOST_WAITING):
        exporter.offer(ONE)
    offered_s = time.monotonic() - before_s
    exported = exporter.stop(0.2)
    assert offered_s < 0.5
    assert time.monotonic() - before_s < 1.0
    assert (exported.sent_count, exported.lost_count) == (0, 10 * MOST_WAITING * POINTS)
    sender.is_held.set()


def test_a_dead_target_does_not_hold_up_the_end() -> None:
    sender = FakeSender(*(SendFailed("Connection refused", may_retry=True) for _ in range(1000)))
    exporter = Exporter("fake", sender)
    for _ in range(MOST_WAITING):
        exporter.offer(ONE)
    exporter.start()
    exported = exporter.stop(5.0)
    assert (exported.lost_count, exported.reason) == (MOST_WAITING * POINTS, "Connection refused")
    assert len(sender.failures) >= 990  # once it was over, one more attempt was enough


def test_losses_become_a_line_of_health(tmp_path: Path) -> None:
    exported = [
        Exported(target="otlp", sent_count=1000, lost_count=2345, reason="HTTP 503"),
        Exported(target="json", sent_count=5, lost_count=0, reason=None),
    ]
    (tmp_path / "exports.json").write_text(exports_to_json(exported))
    (line,) = describe_exports(tmp_path)
    assert (line.level, line.message) == ("warning", "export to otlp: 2,345 of 3,345 points were lost (HTTP 503)")
