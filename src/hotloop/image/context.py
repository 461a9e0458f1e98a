"""A build context -> its files, what .dockerignore admits of them, and copies to build from."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hotloop.core.build_context import Ignore
from hotloop.core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """The files of a folder by their path in it, with their sizes, and its ``folders``. ``ignored`` are folders that
    git is told to ignore; None where it does not know the folder."""

    root: Path
    files: Mapping[str, int]
    folders: tuple[str, ...] = ()
    ignored: frozenset[str] | None = None

    def admit(self, ignore: Ignore) -> dict[str, int]:
        """What the builder may see."""
        return {path: size for path, size in self.files.items() if not ignore.ignores(path)}


def scan_context(root: Path, ignore: Ignore, ignored: frozenset[str] | None) -> BuildContext:
    """The files below ``root`` that the present .dockerignore admits."""
    files: dict[str, int] = {}
    admitted = []
    for folder, folders, names in os.walk(root):
        inside = os.path.relpath(folder, root)
        prefix = "" if inside == "." else f"{inside}/"
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = [
            name
            for name in folders
            if name not in links and (ignore.may_admit_again or not ignore.ignores(f"{prefix}{name}"))
        ]
        admitted += [path for path in (f"{prefix}{name}" for name in folders) if not ignore.ignores(path)]
        for name in (*names, *links):
            path = f"{prefix}{name}"
            if not ignore.ignores(path):
                files[path] = os.lstat(os.path.join(folder, name)).st_size
    return BuildContext(root=root, files=dict(sorted(files.items())), folders=tuple(admitted), ignored=ignored)


def copy_context(context: BuildContext, target: Path, least_free_bytes: int) -> None:
    """A copy with the modes and times of the files. Raises UsageError where the disk has too little room."""
    needed_bytes = sum(context.files.values())
    free_bytes = shutil.disk_usage(target.parent).free
    if needed_bytes + least_free_bytes > free_bytes:
        raise UsageError(
            f"the context has {needed_bytes / 1e9:.1f} GB, and {target.parent} has room for "
            f"{max(0, free_bytes - least_free_bytes) / 1e9:.1f} GB: leave folders out with .dockerignore, or give "
            "--work FOLDER on a larger disk"
        )
    folders = sorted({*context.folders, *(str(Path(path).parent) for path in context.files), "."})
    for folder in folders:
        (target / folder).mkdir(parents=True, exist_ok=True)
    for path in context.files:
        try:
            shutil.copy2(context.root / path, target / path, follow_symlinks=False)
        except OSError as error:
            raise UsageError(f"{context.root / path} cannot be copied: {error.strerror}") from error
    for folder in reversed(folders):
        shutil.copystat(context.root / folder, target / folder)
