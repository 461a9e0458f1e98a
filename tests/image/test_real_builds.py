"""One tiny image, really built; the disk that fills up, too. Needs buildah, busybox and root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotloop.cli import main

BUSYBOX = shutil.which("busybox")
pytestmark = pytest.mark.skipif(
    shutil.which("buildah") is None or BUSYBOX is None or os.geteuid() != 0, reason="needs buildah, busybox and root"
)
CURL = "#!/bin/sh\nsleep 2; echo installed > /packages\n"
DOCKERFILE = (
    "FROM localhost/tiny:1\nWORKDIR /app\nCOPY . .\nRUN curl --fail http://localhost/packages\nRUN cat train.py\n"
)


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project whose base image lies in a store of its own, which the settings name as the user's."""
    base, project = tmp_path / "base", tmp_path / "project"
    base.mkdir()
    project.mkdir()
    assert BUSYBOX is not None
    shutil.copy2(BUSYBOX, base / "busybox")
    (base / "curl").write_text(CURL)
    (base / "curl").chmod(0o755)
    (base / "Dockerfile").write_text(
        "FROM scratch\nCOPY busybox /bin/busybox\nCOPY busybox /bin/sh\nCOPY curl /bin/curl\n"
        'RUN ["/bin/busybox", "--install", "-s", "/bin"]\n'
    )
    store = ["--root", str(tmp_path / "store"), "--runroot", str(tmp_path / "run")]
    settings = f'[storage]\ndriver = "overlay"\ngraphroot = "{tmp_path}/store"\nrunroot = "{tmp_path}/run"\n'
    (tmp_path / "storage.conf").write_text(settings)
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(tmp_path / "storage.conf"))
    monkeypatch.setenv("BUILDAH_ISOLATION", "chroot")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    words = ["buildah", *store, "build", "--tag", "localhost/tiny:1", str(base)]
    subprocess.run(words, check=True, capture_output=True)
    (project / "Dockerfile").write_text(DOCKERFILE)
    (project / "train.py").write_text("pass\n")
    yield project
    subprocess.run(["umount", "--lazy", str(tmp_path / "store" / "overlay")], check=False, capture_output=True)


def test_an_image_is_measured_and_mended(context: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = tmp_path / "work"
    work.mkdir()
    assert main(["image", str(context), "--work", str(work), "--fix", "--diff"]) == 0
    said = capsys.readouterr()
    assert "with packages-first " in said.out
    assert "+RUN curl --fail http://localhost/packages\n COPY . .\n" in said.out
    assert f"changed {context / 'Dockerfile'}" in said.err
    expected = (
        "FROM localhost/tiny:1\nWORKDIR /app\nRUN curl --fail http://localhost/packages\nCOPY . .\nRUN cat train.py\n"
    )
    assert (context / "Dockerfile").read_text() == expected
    assert os.listdir(work) == []
    assert str(work) not in Path("/proc/self/mountinfo").read_text()


def test_a_full_disk_is_one_clear_error(context: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = tmp_path / "small"
    work.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "small", str(work)], check=False).returncode:
        pytest.skip("may not mount a small disk")
    (context / "Dockerfile").write_text(f"{DOCKERFILE}RUN dd if=/dev/zero of=/large bs=1M count=16\n")
    try:
        assert main(["image", str(context), "--work", str(work), "--limit-gb", "10", "-q"]) == 2
        assert "need more disk space than they may use in" in capsys.readouterr().err
        assert os.listdir(work) == []
    finally:
        subprocess.run(["umount", "-l", str(work)], check=True)


def test_a_base_image_that_is_not_there_gives_steps_without_seconds(
    context: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (context / "Dockerfile").write_text(DOCKERFILE.replace("tiny", "absent"))
    assert main(["image", str(context), "--work", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "nothing was built here" in said
    assert "a base image is missing and cannot be pulled" in said
    assert "3 of 5 steps" in said
