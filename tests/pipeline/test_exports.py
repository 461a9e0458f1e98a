from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path

from hotloop.pipeline.exports import RunExports, follow_run, open_targets

from .test_live import Training


def test_what_was_trained_is_exported_to_the_last_step(tmp_path: Path) -> None:
    training = Training(tmp_path / "one")
    (training.folder / "run.json").write_text('{"schema": "hotloop.run/1", "steps_total": 40}')
    senders = open_targets([f"json={tmp_path / 'one.jsonl'}"], {})
    exports = RunExports(senders, partial(follow_run, training.folder), interval_s=0.02)
    exports.start()
    for _ in range(40):
        training.step()
        time.sleep(0.002)
    training.end()
    (exported,) = exports.stop()
    lines = [json.loads(line) for line in (tmp_path / "one.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 40
    assert lines[-1]["metrics"]["hotloop/progress_ratio"] == 1.0
    assert lines[-1]["metrics"]["hotloop/run_state/ended"] == 1
    assert [line["step"] for line in lines] == sorted(line["step"] for line in lines)
    assert (exported.lost_count, exported.reason) == (0, None)
    assert exported.sent_count > 0
