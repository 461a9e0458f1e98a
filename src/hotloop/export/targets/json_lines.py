"""json: one JSON object per line, as wandb.log and mlflow.log_metrics take them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from hotloop.core.errors import UsageError
from hotloop.export.points import Snapshot, flatten_points
from hotloop.export.target import Sender, SendFailed, Target


class _Lines:
    """A file that grows by whole lines: ``{"step": ..., "time_s": ..., "metrics": {name: value}}``."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._last_step = -1

    def send(self, snapshot: Snapshot) -> None:
        lead = snapshot.run.lead
        if lead is None or lead.steps_count <= self._last_step:
            return  # nothing was trained since the line before
        line = {"step": lead.steps_count, "time_s": round(snapshot.wall_s, 3), "metrics": flatten_points(snapshot)}
        data = json.dumps(line, allow_nan=False).encode() + b"\n"
        try:
            whole_bytes = self._file.seek(0, 2)
            if self._file.write(data) != len(data):
                self._file.truncate(whole_bytes)
                raise OSError(28, "No space left on device")
        except OSError as error:
            raise SendFailed(error.strerror or type(error).__name__, may_retry=True) from None
        self._last_step = lead.steps_count

    def close(self) -> None:
        self._file.close()


def open_json(where: str, variables: Mapping[str, str]) -> Sender:
    try:
        return _Lines(Path(where).open("ab", buffering=0))
    except OSError as error:
        raise UsageError(f"--export json={where}: cannot write there ({error.strerror}); give a file") from None


TARGET = Target(
    id="json",
    summary="JSON lines with flat names, for wandb.log and mlflow.log_metrics",
    where="FILE",
    open=open_json,
)
