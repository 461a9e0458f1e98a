"""Traces on S3, read from a server of our own: moto in a thread, on a port that the system chooses."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.session
import pytest
import s3fs
from build import write_trace
from moto.server import ThreadedMotoServer

from hotloop.cli import main


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    # The server writes a line for every request.
    log = logging.getLogger("werkzeug")
    before = log.level
    log.setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop()
        log.setLevel(before)


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Two ranks and a note under s3://traces/run/, and nothing of this machine's own credentials."""
    settings = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "NO_PROXY": "127.0.0.1",
    }
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    client: Any = botocore.session.get_session().create_client("s3")
    client.create_bucket(Bucket="traces")
    for rank in range(2):
        content = write_trace(tmp_path / "made.json", rank=rank, world_size=2).read_bytes()
        client.put_object(Bucket="traces", Key=f"run/rank{rank}.json", Body=content)
    client.put_object(Bucket="traces", Key="run/notes.txt", Body=b"no trace")
    client.close()
    # File systems are kept by their options, and those do not hold the environment.
    s3fs.S3FileSystem.clear_instance_cache()
    yield "s3://traces"
    s3fs.S3FileSystem.clear_instance_cache()


def read_ranks(target: Path) -> list[tuple[int, str]]:
    report = json.loads(target.read_text())
    return [(rank["facts"]["rank"], rank["facts"]["source"]) for rank in report["trace"]["ranks"]]


def report(target: Path, *urls: str) -> int:
    return main(["trace", *urls, "-q", "--exit-zero", "--json", str(target)])


def test_one_object_is_a_trace(bucket: str, tmp_path: Path) -> None:
    assert report(tmp_path / "r.json", f"{bucket}/run/rank1.json") == 0
    assert read_ranks(tmp_path / "r.json") == [(1, "rank1.json")]


@pytest.mark.parametrize("end", ["", "/"])
def test_a_prefix_is_a_folder_of_ranks(bucket: str, end: str, tmp_path: Path) -> None:
    assert report(tmp_path / "r.json", f"{bucket}/run{end}") == 0
    assert read_ranks(tmp_path / "r.json") == [(0, "rank0.json"), (1, "rank1.json")]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://traces/run/rank9.json", "does not exist"),
        ("s3://traces/nowhere/", "does not exist"),
        ("s3://no-such-bucket/rank0.json", "does not exist (The specified bucket does not exist)"),
    ],
)
def test_what_is_not_there_is_one_clear_line(
    bucket: str, url: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", url]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"hotloop: {url} {words}")
