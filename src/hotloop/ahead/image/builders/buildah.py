"""buildah: builds without a daemon, in separate stores; the user's store is only read, for base images."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hotloop.ahead.image import image_tree
from hotloop.ahead.image.builder import Build, Builder, FoundFile, Source
from hotloop.ahead.image.program import BuildFailed, Limits, Output, remove_tree, run_limited
from hotloop.core.errors import UsageError

TAG = "localhost/hotloop-image:built"
STEP = re.compile(r"(?:\[\d+/\d+\] )?STEP \d+/\d+: (.*)$")
CACHED = "--> Using cache "


class Buildah(Builder):
    """buildah 1.24 or newer; older ones know neither cache mounts nor --ignorefile."""

    id = "buildah"

    def __init__(self) -> None:
        self._program = shutil.which("buildah") or ""
        self._variables = dict(os.environ)
        self._folder = Path()
        self._variant = Path()
        self._stores: list[str] = []
        """Options that let a variant's store read the base images."""
        self._driver = ""
        self._lock = -1

    def describe(self) -> str:
        if not self._program:
            raise UsageError("buildah is not installed; install it (apt-get install buildah), or give --builder docker")
        said = subprocess.run([self._program, "--version"], capture_output=True, text=True, check=False).stdout
        found = re.match(r"buildah version (\S+)", said)
        if found is None:
            raise UsageError(f"{self._program} --version fails; repair the buildah installation")
        return f"buildah {found[1]}"

    def prepare(self, images: Sequence[str], folder: Path, lock: int, limits: Limits) -> None:
        self._folder, self._lock = folder, lock
        if not shutil.which("runc") and not shutil.which("crun"):
            self._variables.setdefault("BUILDAH_ISOLATION", "chroot")
        base = self._store(folder / "base")
        self._open(folder / "base")
        self._driver = str(json.loads(self._text([*base, "info"], limits))["store"]["GraphDriverName"])
        own = _find_own_store(self._driver)
        readable = [str(folder / "base" / "store"), *([str(own)] if own else [])]
        self._stores = [word for one in readable for word in ("--storage-opt", f"{self._driver}.imagestore={one}")]
        for image in images:
            seen = base if own is None else [*base, "--storage-opt", f"{self._driver}.imagestore={own}"]
            try:
                self._text([*seen, "inspect", "--type", "image", image], limits)
            except BuildFailed:
                self._text([*base, "pull", image], limits)

    def open_variant(self, name: str) -> None:
        if self._variant != self._folder / "base":
            remove_tree(self._variant)
        self._open(self._folder / name)

    def _open(self, folder: Path) -> None:
        self._variant = folder
        (folder / "tmp").mkdir(parents=True, exist_ok=True)
        self._variables["TMPDIR"] = str(folder / "tmp")  # where buildah keeps cache mounts

    def _store(self, folder: Path) -> list[str]:
        words = [self._program, "--root", str(folder / "store"), "--runroot", str(folder / "run")]
        return [*words, *(["--storage-driver", self._driver] if self._driver else [])]

    def build(self, source: Source, limits: Limits, *, is_cold: bool) -> Build:
        if is_cold:
            shutil.rmtree(self._variant / "tmp", ignore_errors=True)
            (self._variant / "tmp").mkdir()
        dockerfile, ignore = source.write(self._variant)
        words = [*self._store(self._variant), *self._stores, "build", "--layers", "--pull-never"]
        words += ["--no-cache"] if is_cold else []
        words += [word for name, value in source.build_args.items() for word in ("--build-arg", f"{name}={value}")]
        words += ["--file", str(dockerfile), "--ignorefile", str(ignore), "--tag", TAG, str(source.context)]
        return read_build(self._run(words, limits))

    def list_files(self, limits: Limits) -> dict[str, FoundFile]:
        prefix = [] if os.getuid() == 0 else [self._program, "unshare"]
        store = [*prefix, *self._store(self._variant), *self._stores]
        container = self._text([*store, "from", "--pull-never", TAG], limits)
        script = 'root=$("$@") || exit 1; exec "$PYTHON" "$TREE" "$root"'
        self._variables |= {"PYTHON": sys.executable, "TREE": image_tree.__file__}
        mount = [*self._store(self._variant), *self._stores, "mount", container]
        output = self._run([*prefix, "sh", "-c", script, "sh", *mount], limits)
        self._text([*store, "umount", container], limits)
        self._text([*store, "rm", container], limits)
        found = (json.loads(line) for line in output.lines)
        return {one.pop("path"): FoundFile(**one) for one in found}

    def close(self) -> None:
        """Nothing is outside the workspace."""

    def _run(self, words: Sequence[str], limits: Limits) -> Output:
        return run_limited(words, self._variables, limits, lock=self._lock)

    def _text(self, words: Sequence[str], limits: Limits) -> str:
        return "\n".join(self._run(words, limits).lines).strip()


def _find_own_store(driver: str) -> Path | None:
    """The store of this user, if it has images that this driver can read."""
    home = Path.home()
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    is_root = os.getuid() == 0
    settings = os.environ.get("CONTAINERS_STORAGE_CONF")
    named = [Path(settings)] if settings else [Path("/etc/containers/storage.conf")]
    named += [] if settings or is_root else [home / ".config" / "containers" / "storage.conf"]
    store = Path("/var/lib/containers/storage") if is_root else data / "containers" / "storage"
    for file in named:
        found = re.search(r'^\s*graphroot\s*=\s*"([^"]+)"', _read(file), re.M) if is_root or file != named[0] else None
        store = Path(found[1]) if found else store
    return store if (store / f"{driver}-images" / "images.json").is_file() else None


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def read_build(output: Output) -> Build:
    """The steps of a build's output.

    >>> build = read_build(Output(("STEP 1/2: FROM a", "STEP 2/2: RUN b", "--> Using cache 1", "COMMIT c"), 20))
    >>> build.steps_count, build.cached_count
    (2, 2)
    """
    are_cached: list[bool] = []
    for line in output.lines:
        if step := STEP.match(line):
            are_cached.append(step[1].upper().startswith("FROM "))
        elif are_cached and line.startswith(CACHED):
            are_cached[-1] = True
    return Build(wall_ns=output.wall_ns, steps_count=len(are_cached), cached_count=sum(are_cached))
