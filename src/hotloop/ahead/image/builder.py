"""Builder: how a program builds an image apart from the user's own images, and the contents of a build."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotloop.core.image import ImageContents

from .program import Limits

SHOWN = 10
"""The most paths that a report names; it counts all."""


def compare_contents(
    before: Mapping[str, FoundFile],
    after: Mapping[str, FoundFile],
    *,
    left_out: Iterable[str] = (),
    caches: Iterable[str] = (),
    unstable: Iterable[str] = (),
) -> ImageContents:
    """``left_out`` are paths that the fix removes from the context, ``caches`` folders that it empties, ``unstable``
    paths that differ between builds of the unchanged file. Paths have no leading slash."""
    folders = tuple(f"{one.strip('/')}/" for one in caches)
    meant = frozenset(left_out)
    passed = frozenset(unstable)
    differing = [path for path in sorted({*before, *after}) if before.get(path) != after.get(path)]
    gone = [path for path in differing if path not in after and (path in meant or path.startswith(folders))]
    others = [path for path in differing if path not in passed and path not in set(gone)]
    return ImageContents(
        files_count=len(before),
        left_out=tuple(gone[:SHOWN]),
        left_out_count=len(gone),
        differences=tuple(f"{path}: {_describe(before.get(path), after.get(path))}" for path in others[:SHOWN]),
        differences_count=len(others),
        unstable_count=len(passed.intersection(differing)),
    )


def _describe(before: FoundFile | None, after: FoundFile | None) -> str:
    if before is None or after is None:
        return "only with the fix" if before is None else "missing with the fix"
    names = ("kind", "mode", "owner", "digest")
    return ", ".join(name for name in names if getattr(before, name) != getattr(after, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A build: wall time of the whole command, its steps, and how many of them came from the cache."""

    wall_ns: int
    steps_count: int
    cached_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The input of a build: a folder, and the text of the two files, which may differ from those in the folder."""

    context: Path
    dockerfile: str
    dockerignore: str
    build_args: Mapping[str, str]

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Both texts as files below ``folder``, where docker and buildah find the second by the first's name."""
        dockerfile = folder / "Dockerfile"
        ignore = folder / "Dockerfile.dockerignore"
        dockerfile.write_text(self.dockerfile, encoding="utf-8")
        ignore.write_text(self.dockerignore, encoding="utf-8")
        return dockerfile, ignore


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file of an image: type, mode, owner, and the digest of its bytes or its link's target."""

    kind: str
    mode: int
    owner: str
    digest: str


class Builder(ABC):
    """A program that builds images. Its stores are below the workspace, or are removed by ``close``."""

    id: str

    @abstractmethod
    def describe(self) -> str:
        """Name and version. Raises UsageError if the program is missing or does not work here."""

    @abstractmethod
    def prepare(self, images: Sequence[str], folder: Path, lock: int, limits: Limits) -> None:
        """Prepare for builds from these base images below ``folder``.

        Raises BuildFailed for an image that is missing and cannot be pulled.
        """

    @abstractmethod
    def open_variant(self, name: str) -> None:
        """Later builds share no cached layer and no cache mount with earlier builds."""

    @abstractmethod
    def build(self, source: Source, limits: Limits, *, is_cold: bool) -> Build:
        """Build; a cold one finds neither layers nor filled cache mounts.

        Raises BuildFailed, LimitReached, UsageError.
        """

    @abstractmethod
    def list_files(self, limits: Limits) -> dict[str, FoundFile]:
        """The files of the last built image, by path."""

    @abstractmethod
    def close(self) -> None:
        """Remove everything outside the workspace."""
