from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import s3fs

from hotloop.remote import store
from tests.remote.endpoint import FlakyEndpoint, settings_for


@pytest.fixture
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other at once."""
    monkeypatch.setattr(store, "FIRST_WAIT_S", 0.001)


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch, prompt: None) -> Iterator[FlakyEndpoint]:
    """An S3 endpoint at which 30 % of the requests fail, with the bucket ``runs``."""
    endpoint = FlakyEndpoint(0.3, seed=19, slow_s=0.05)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings_for(endpoint.url).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    endpoint.make_bucket("runs")
    s3fs.S3FileSystem.clear_instance_cache()
    yield endpoint
    s3fs.S3FileSystem.clear_instance_cache()
    endpoint.close()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"
