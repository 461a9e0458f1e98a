"""A run on this disk or at a URL -> its folder here; and a run folder -> a URL, while it is recorded or later."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from hotloop.core.errors import RecordingError, UsageError
from hotloop.core.redact import redact_text
from hotloop.evidence.trace.recording import count_rows as count_recorded_rows
from hotloop.evidence.trace.recording import find_run
from hotloop.remote.fetch import default_cache, fetch_run, is_store
from hotloop.remote.follow import UploadProcess, mirror, process_words
from hotloop.remote.store import RemoteStore, check_driver, protocol_of
from hotloop.remote.uploader import (
    Uploaded,
    Uploader,
    count_uploaded,
    hold_folder,
    read_state,
    write_uploaded,
)

JOB_ID = "SLURM_JOB_ID"
"""An id that distinguishes runs and is the same on all nodes of one run."""


def locate_run(name: str) -> Path:
    """The folder of a run: as ``find_run`` finds it, or fetched from where its nodes uploaded it to.

    Raises RecordingError.
    """
    return fetch_run(name, default_cache(os.environ)) if is_store(name) else find_run(name, Path.cwd())


def count_rows(path: Path, after_row: int) -> int | None:
    """Rows in a recording, lost ones before the last included; ``after_row`` are known. None where it has none yet."""
    try:
        return count_recorded_rows(path, after_row)
    except RecordingError:
        return None


def choose_run_id(given: str | None, variables: Mapping[str, str]) -> str | None:
    """The id that all nodes of this run agree on: the given one, the scheduler's, or None."""
    if given is None and variables.get(JOB_ID):
        return f"job-{variables[JOB_ID]}"
    return given


def check_url(url: str) -> str:
    """The URL as nodes use it. Raises UsageError where nothing can be sent there from here."""
    if not url.strip():
        raise UsageError("the URL is empty (an unset variable?); give a URL such as s3://bucket/run, or a folder")
    if not url.isprintable():
        raise UsageError(f"{url!r}: a URL or folder without line breaks and control characters is needed")
    if protocol_of(url) == "memory":
        raise UsageError(f"{url}: a process's memory is gone when the process ends; give file://... or a folder")
    check_driver(url)
    return url if "://" in url else os.path.abspath(url)


class RunUpload(UploadProcess):
    """``hotloop run --record``: a process next to the training, and the count of what did not arrive."""

    def __init__(self, url: str, run_id: str | None, folder: Path, emit: Callable[[str], None]) -> None:
        super().__init__(process_words(folder, url, run_id), folder, emit)
        self._url = url

    def finish(self, within_s: float) -> Uploaded:
        """Wait until everything has arrived, for a limited time, and count what has not; upload.json says it, too."""
        try:
            self.stop(within_s)
        finally:
            uploaded = _count(self._folder, self._url, self.reason)
        return uploaded


def _count(folder: Path, url: str, reason: str | None) -> Uploaded:
    shown = redact_text(url.rstrip("/"))
    uploaded = count_uploaded(folder, shown, read_state(folder, shown), count_rows, reason)
    write_uploaded(folder, uploaded)
    return uploaded


def upload_run(
    name: str, url: str, *, run_id: str | None, within_s: float, emit: Callable[[str], None] = lambda _: None
) -> tuple[Path, Uploaded]:
    """Send what of a run on this disk has not arrived yet, and try for ``within_s`` at most.

    Raises UsageError (PrefixTaken) where the URL is another run's, RecordingError where there is no such run.
    """
    folder, url = find_run(name, Path.cwd()), check_url(url)
    until_s = time.monotonic() + within_s

    def wait(seconds: float) -> bool:
        time.sleep(seconds)
        return True

    with hold_folder(folder):
        reason = mirror(
            lambda: Uploader(folder, RemoteStore(url), run_id=run_id, count_rows=count_rows, is_running=False),
            over=True,
            wait=wait,
            gives_up=lambda wait_s: time.monotonic() + wait_s > until_s,
            fail=lambda reason: emit(f"{reason}; trying again"),
        )
        return folder, _count(folder, url, reason)
