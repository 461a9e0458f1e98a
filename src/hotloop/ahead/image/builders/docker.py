"""docker: builds with its own BuildKit (buildx, driver docker-container), which is removed afterward.

The user's builder, its cache and the daemon's images are not used: each variant's BuildKit pulls the base images for
itself, before anything is timed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from hotloop.ahead.image.builder import Build, Builder, FoundFile, Source
from hotloop.ahead.image.image_tree import hash_file
from hotloop.ahead.image.program import Limits, Output, run_limited
from hotloop.core.errors import UsageError

STEP = re.compile(r"#(\d+) \[(?:\S+ +)?\d+/\d+\] (.*)")
REUSED = re.compile(r"#(\d+) CACHED$")
KINDS = {tarfile.SYMTYPE: "l", tarfile.CHRTYPE: "c", tarfile.BLKTYPE: "b", tarfile.FIFOTYPE: "p"}


class Docker(Builder):
    """docker with its buildx plugin, and a daemon that may start the container of a BuildKit."""

    id = "docker"

    def __init__(self) -> None:
        self._program = shutil.which("docker") or ""
        self._images: Sequence[str] = ()
        self._folder = Path()
        self._lock = -1
        self._limits: Limits | None = None
        self._name = ""
        self._source: Source | None = None

    def describe(self) -> str:
        if not self._program:
            raise UsageError("docker is not installed; install it, or give --builder buildah")
        said = ""
        for words, advice in (
            (["buildx", "version"], "install its buildx plugin"),
            (["version", "--format", "{{.Server.Version}}"], "start its daemon, or give --builder buildah"),
        ):
            given = subprocess.run([self._program, *words], capture_output=True, text=True, check=False)
            said = (given.stdout if given.returncode == 0 else given.stderr).strip() or "no answer"
            if given.returncode:
                raise UsageError(f"docker {words[0]} fails: {said.splitlines()[-1]}; {advice}")
        return f"docker {said}"

    def prepare(self, images: Sequence[str], folder: Path, lock: int, limits: Limits) -> None:
        self._images, self._folder, self._lock, self._limits = images, folder, lock, limits
        self.open_variant("base")

    def open_variant(self, name: str) -> None:
        assert self._limits is not None
        self.close()
        self._name = f"hotloop-image-{os.getpid()}-{name}"
        driver = ["--driver", "docker-container", "--bootstrap"]
        self._run(["buildx", "create", "--name", self._name, *driver], self._limits)
        empty = self._folder / "empty"
        empty.mkdir(exist_ok=True)
        for image in self._images:
            self._build(
                Source(context=empty, dockerfile=f"FROM {image}\n", dockerignore="", build_args={}), self._limits
            )

    def build(self, source: Source, limits: Limits, *, is_cold: bool) -> Build:
        if is_cold:
            prune = ["buildx", "prune", "--builder", self._name, "--force", "--filter", "type=exec.cachemount"]
            self._run(prune, limits)
        self._source = source
        return read_build(self._build(source, limits, *(["--no-cache"] if is_cold else [])))

    def list_files(self, limits: Limits) -> dict[str, FoundFile]:
        assert self._source is not None
        archive = self._folder / "image.tar"
        self._build(self._source, limits, "--output", f"type=tar,dest={archive}")
        with tarfile.open(archive) as image:
            found = dict(_read_files(image))
        archive.unlink()
        return found

    def close(self) -> None:
        if self._name:
            words = [self._program, "buildx", "rm", "--force", self._name]
            subprocess.run(words, capture_output=True, check=False)
            self._name = ""

    def _build(self, source: Source, limits: Limits, *options: str) -> Output:
        dockerfile, _ = source.write(self._folder)
        words = ["buildx", "build", "--builder", self._name, "--progress", "plain", "--provenance=false", *options]
        words += [] if "--output" in options else ["--output", "type=image,name=hotloop-image,push=false"]
        words += [word for name, value in source.build_args.items() for word in ("--build-arg", f"{name}={value}")]
        return self._run([*words, "--file", str(dockerfile), str(source.context)], limits)

    def _run(self, words: Sequence[str], limits: Limits) -> Output:
        return run_limited([self._program, *words], os.environ, limits, lock=self._lock)


def _read_files(image: tarfile.TarFile) -> Iterator[tuple[str, FoundFile]]:
    """Files by path; a hard link has the bytes of its target."""
    for one in image:
        if one.isdir():
            continue
        kind = KINDS.get(one.type, "-")
        if kind == "-":
            content = image.extractfile(one)
            assert content is not None
            digest = hash_file(content, is_pyc=one.name.endswith(".pyc"))  # type: ignore[arg-type]
        else:
            digest = one.linkname if kind == "l" else f"{one.devmajor}:{one.devminor}"
        yield one.name.removeprefix("./"), FoundFile(kind, one.mode & 0o7777, f"{one.uid}:{one.gid}", digest)


def read_build(output: Output) -> Build:
    """The steps of ``--progress plain``; BuildKit has none for instructions that only set metadata."""
    texts: dict[str, str] = {}
    cached: set[str] = set()
    for line in output.lines:
        if step := STEP.fullmatch(line):
            texts.setdefault(step[1], step[2])
        elif end := REUSED.fullmatch(line):
            cached.add(end[1])
    count = sum(number in cached or text.startswith("FROM ") for number, text in texts.items())
    return Build(wall_ns=output.wall_ns, steps_count=len(texts), cached_count=count)
