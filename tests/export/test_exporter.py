from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from hotloop.show.export.exporter import Exported, Exporter, describe_exports, exports_to_json
from hotloop.show.export.points import Snapshot
from hotloop.show.export.target import SendFailed
from tests.waiting import wait_until

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
        self.asked_count = 0

    def send(self, snapshot: Snapshot) -> None:
        self.asked_count += 1
        self.is_held.wait(10)
        if self.failures:
            raise self.failures.pop(0)
        self.sent.append(snapshot)

    def close(self) -> None:
        self.is_closed = True


def offer_all(exporter: Exporter, sender: FakeSender, count: int) -> None:
    """One after the other, each when the one before was taken."""
    for number in range(count):
        exporter.offer(ONE)
        wait_until(lambda number=number: sender.asked_count > number)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("failure", "reason"),
    [(None, None), (SendFailed("HTTP 503"), "HTTP 503"), (ZeroDivisionError(), "a bug in hotloop: ZeroDivisionError")],
)
def test_what_fails_is_lost_and_counted(failure: Exception | None, reason: str | None) -> None:
    sender = FakeSender(*([] if failure is None else [failure]))
    exporter = Exporter("fake", sender)
    exporter.start()
    offer_all(exporter, sender, 3)
    lost = POINTS * (failure is not None)
    assert exporter.stop(5.0) == Exported(target="fake", sent_count=3 * POINTS - lost, lost_count=lost, reason=reason)
    assert sender.is_closed


def test_a_target_that_hangs_holds_up_nobody_and_every_point_is_counted() -> None:
    sender = FakeSender()
    sender.is_held.clear()
    exporter = Exporter("fake", sender)
    exporter.start()
    before_s = time.monotonic()
    for _ in range(640):
        exporter.offer(ONE)
    exported = exporter.stop(0.2)
    assert time.monotonic() - before_s < 1.0
    assert (exported.sent_count, exported.lost_count) == (0, 640 * POINTS)
    sender.is_held.set()


def test_losses_become_a_line_of_health(tmp_path: Path) -> None:
    exported = [
        Exported(target="otlp", sent_count=1000, lost_count=2345, reason="HTTP 503"),
        Exported(target="json", sent_count=5, lost_count=0, reason=None),
    ]
    (tmp_path / "exports.json").write_text(exports_to_json(exported))
    (line,) = describe_exports(tmp_path)
    assert (line.level, line.message) == ("warning", "export to otlp: 2,345 of 3,345 points were lost (HTTP 503)")
