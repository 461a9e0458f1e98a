from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hotloop.ahead.image.builder import FoundFile, compare_contents
from hotloop.ahead.image.builders import docker
from hotloop.ahead.image.builders.buildah import read_build
from hotloop.ahead.image.program import (
    BuildFailed,
    LimitReached,
    Limits,
    Output,
    remove_abandoned,
    run_limited,
)
from hotloop.core.errors import UsageError

RECORDED = """\
[1/2] STEP 1/3: FROM localhost/base:1 AS wheels
[1/2] STEP 2/3: COPY requirements.txt .
--> Using cache 5da2f0a0908caf2f0a32da6863848595703241f9a75e22bb41951329a099430a
--> 5da2f0a0908
[1/2] STEP 3/3: RUN pip wheel -r requirements.txt
Collecting x
--> 9d82b4a71a7
[2/2] STEP 1/2: FROM localhost/base:1
[2/2] STEP 2/2: COPY --from=wheels /wheels /wheels
[2/2] COMMIT localhost/t:1
--> 8884a0c6f33
Successfully tagged localhost/t:1"""
"""What buildah 1.28.2 printed."""


def make_limits(folder: Path, seconds: float = 60.0, least_free_bytes: int = 0) -> Limits:
    return Limits(deadline_s=time.monotonic() + seconds, least_free_bytes=least_free_bytes, folder=folder)


def test_steps_of_a_recorded_build() -> None:
    build = read_build(Output(tuple(RECORDED.splitlines()), 4_600_000_000))
    assert (build.steps_count, build.cached_count, build.wall_ns) == (5, 3, 4_600_000_000)


def test_a_program_ends_with_its_limits(tmp_path: Path) -> None:
    variables = dict(os.environ)
    assert run_limited(["echo", "a"], variables, make_limits(tmp_path)).lines == ("a",)
    with pytest.raises(BuildFailed, match="wrong"):
        run_limited(["sh", "-c", "echo wrong; exit 3"], variables, make_limits(tmp_path))
    with pytest.raises(UsageError, match=r"need more disk .* no space left on device; free some"):
        run_limited(["sh", "-c", "echo write: no space left on device; exit 1"], variables, make_limits(tmp_path))
    with pytest.raises(UsageError, match="GB are left"):
        run_limited(["true"], variables, make_limits(tmp_path, least_free_bytes=1 << 60))
    marker = tmp_path / "marker"
    began_s = time.monotonic()
    with pytest.raises(LimitReached):
        run_limited(["sh", "-c", f"sleep 30 & sleep 30; touch {marker}"], variables, make_limits(tmp_path, 0.2))
    assert time.monotonic() - began_s < 10
    assert not marker.exists()


def test_contents_are_compared_by_bytes_mode_and_owner() -> None:
    def file(digest: str, mode: int = 0o644) -> FoundFile:
        return FoundFile("-", mode, "0:0", digest)

    before = {"a": file("1"), "b": file("1"), "app/.git/x": file("1"), "root/.cache/pip/y": file("1"), "log": file("1")}
    after = {"a": file("1"), "b": file("1", 0o600), "c": file("1"), "log": file("2")}
    found = compare_contents(before, after, left_out=["app/.git/x"], caches=["/root/.cache/pip"], unstable=["log"])
    assert found.differences == ("b: mode", "c: only with the fix")
    assert found.left_out == ("app/.git/x", "root/.cache/pip/y")
    assert (found.differences_count, found.left_out_count, found.unstable_count, found.are_same) == (2, 2, 1, False)


HOLDER = """
import subprocess, sys, time
from pathlib import Path
from hotloop.ahead.image.program import Limits, run_limited
from hotloop.ahead.image.program import open_workspace
with open_workspace(Path(sys.argv[1])) as (root, lock):
    limits = Limits(deadline_s=time.monotonic() + 60, least_free_bytes=0, folder=root)
    run_limited(["sh", "-c", f"touch {sys.argv[2]}; sleep 2"], {"PATH": "/usr/bin:/bin"}, limits, lock=lock)
"""


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_measurement_leaves_nothing_for_long(sign: int, tmp_path: Path) -> None:
    work, marker = tmp_path / "work", tmp_path / "marker"
    work.mkdir()
    child = subprocess.Popen([sys.executable, "-c", HOLDER, str(work), str(marker)], stderr=subprocess.DEVNULL)
    _wait_until(marker.exists)
    remove_abandoned(work)
    assert len(os.listdir(work)) == 1
    child.send_signal(sign)
    child.wait()
    if sign == signal.SIGKILL:
        remove_abandoned(work)
        assert len(os.listdir(work)) == 1  # its builder goes on, and holds the lock
        _wait_until(lambda: remove_abandoned(work) or not os.listdir(work))
    assert os.listdir(work) == []


def _wait_until(is_so: object) -> None:
    deadline_s = time.monotonic() + 20
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


PLAIN = """\
#1 [internal] load build definition from Dockerfile
#1 DONE 0.0s
#5 [wheels 1/3] FROM localhost/base:1@sha256:1f
#5 DONE 0.1s
#6 [wheels 2/3] COPY requirements.txt .
#6 CACHED
#7 [wheels 3/3] RUN pip wheel -r requirements.txt
#7 0.650 Collecting x
#7 DONE 3.9s
#8 [stage-1 2/2] COPY --from=wheels /wheels /wheels
#8 DONE 0.2s
#9 exporting to image
#9 exporting layers 0.3s done
#9 DONE 0.4s"""
"""Written after BuildKit's --progress plain."""


def test_steps_of_buildkits_plain_progress() -> None:
    build = docker.read_build(Output(tuple(PLAIN.splitlines()), 5_000_000_000))
    assert (build.steps_count, build.cached_count) == (4, 2)


def test_docker_without_a_daemon_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "docker"
    program.write_text('#!/bin/sh\ntest "$1" = buildx || { echo "Cannot connect to the Docker daemon" >&2; exit 1; }\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(
        UsageError, match=r"docker version fails: Cannot connect .* start its daemon, or give --builder"
    ):
        docker.Docker().describe()
