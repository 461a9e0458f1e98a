"""A Dockerfile and its surroundings -> Build: stages, what each installs, the folder that is sent to the builder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hotloop.core.dockerfile import Dockerfile, DockerfileError, DockerStage, Instruction, parse_dockerfile
from hotloop.lint.files import LintFormat, NotRead, SourceFile, Surroundings

MOST_ENTRIES = 100_000
"""Files of a folder that are counted."""
_INSTALLS = re.compile(
    r"(?:^|[\s;&|(])(?:(?:python[\d.]*\s+-m\s+)?pip[\d.]*|uv(?:\s+pip)?|conda|mamba|micromamba|poetry|apt-get|apt)"
    r"\s+(?:-\S+\s+)*(?:install|sync|env\s+(?:create|update)|update\s+-f)\b"
)
PIP_INSTALL = re.compile(
    r"(?:^|[\s;&|(])(?:python[\d.]*\s+-m\s+)?(pip[\d.]*|uv\s+pip)\s+(?:-\S+\s+)*install\b([^;&|\n]*)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFiles:
    """The folder that is sent: ``ignores`` are the patterns of its .dockerignore, None without one."""

    folder: str
    ignores: tuple[str, ...] | None

    def measure(self) -> tuple[int, str] | None:
        """Bytes of the files, and the entry of the folder that holds most; None where there are too many to count.

        Patterns are applied to the folder's own entries only, so that what a later pattern lets in again is counted.
        """
        sizes: dict[str, int] = {}
        count = 0
        for name in self._list_sent():
            path = os.path.join(self.folder, name)
            for one in _walk_files(path):
                count += 1
                if count > MOST_ENTRIES:
                    return None
                sizes[name] = sizes.get(name, 0) + one
        total = sum(sizes.values())
        return total, max(sizes, key=lambda name: sizes[name]) if sizes else ""

    def _list_sent(self) -> Iterator[str]:
        try:
            names = sorted(os.listdir(self.folder))
        except OSError:
            return
        out = {one.strip("/").removesuffix("/**").removesuffix("/*").removeprefix("**/") for one in self.ignores or ()}
        for name in names:
            if name not in out:
                yield name


class DockerBuild:
    """A parsed Dockerfile with what rules ask of it."""

    def __init__(self, path: str, dockerfile: Dockerfile) -> None:
        self.path = path
        self.dockerfile = dockerfile

    @property
    def stages(self) -> tuple[DockerStage, ...]:
        return self.dockerfile.stages

    @property
    def final(self) -> DockerStage | None:
        """The stage that becomes the image where no target is named."""
        return self.stages[-1] if self.stages else None

    @cached_property
    def context(self) -> BuildFiles | None:
        """The nearest folder, from the Dockerfile's own upwards, that has all that is copied; None if none has."""
        sources = [
            source
            for stage in self.stages
            for one in stage.instructions
            if one.name in ("COPY", "ADD") and one.flag("from") is None
            for source in copied(one)
            if not re.search(r"[$*?\[:]", source)
        ]
        folder = Path(os.path.abspath(self.path)).parent
        for candidate in (folder, folder.parent, folder.parent.parent):
            if all((candidate / source.lstrip("/")).exists() for source in sources):
                return BuildFiles(folder=str(candidate), ignores=_read_ignores(self.path, candidate))
            if (candidate / ".git").exists():
                break
        return None


def parse_build(file: SourceFile, around: Surroundings) -> DockerBuild:
    """Raises NotRead where no builder would take the file."""
    try:
        return DockerBuild(file.path, parse_dockerfile(file.text))
    except DockerfileError as error:
        raise NotRead(f"no Dockerfile that can be built ({error})") from None


def copied(one: Instruction) -> tuple[str, ...]:
    """The sources of a COPY or ADD; none where heredocs are its source."""
    if one.heredocs:
        return ()
    words = one.exec_form or tuple(one.arguments.split())
    return tuple(word.strip("\"'") for word in words[:-1])


def copies_everything(one: Instruction) -> bool:
    """Whether an instruction copies the whole context."""
    return one.name in ("COPY", "ADD") and one.flag("from") is None and any(s in (".", "./", "/") for s in copied(one))


def installs(one: Instruction) -> bool:
    """Whether a RUN installs packages from a list or an index."""
    return one.name == "RUN" and _INSTALLS.search(one.script) is not None


def list_pip_installs(one: Instruction) -> list[str]:
    """The arguments of each ``pip install`` of a RUN."""
    return [match.group(2) for match in PIP_INSTALL.finditer(one.script)] if one.name == "RUN" else []


def _read_ignores(dockerfile: str, folder: Path) -> tuple[str, ...] | None:
    for path in (Path(f"{dockerfile}.dockerignore"), folder / ".dockerignore"):
        try:
            text = path.read_bytes()[: 1 << 20].decode("utf-8", "replace")
        except OSError:
            continue
        lines = (line.strip() for line in text.split("\n"))
        return tuple(line for line in lines if line and not line.startswith("#"))
    return None


def _walk_files(path: str) -> Iterator[int]:
    """Sizes of the files at or below a path, links not followed."""
    if os.path.islink(path):
        return
    if os.path.isfile(path):
        yield os.lstat(path).st_size
        return
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                yield os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue  # gone meanwhile


_NAME = re.compile(r"(?i)((.+\.)?(Dockerfile|Containerfile)|Dockerfile[._-].+)$")
_OTHER_NAME = re.compile(r"(?i)\.(dockerignore|md|py|sh|ya?ml|j2|jinja2?|tmpl|template|txt|json|bak|orig)$")

DOCKERFILE = LintFormat(
    id="dockerfile",
    title="Dockerfile",
    may_name=lambda name: _NAME.match(name) is not None and not _OTHER_NAME.search(name),
    parse=parse_build,
    is_sure=True,
    order=0,
)
