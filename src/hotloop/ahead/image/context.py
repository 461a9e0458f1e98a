"""A build context -> copies to build from."""

from __future__ import annotations

import shutil
from pathlib import Path

from hotloop.core.build_context import BuildContext
from hotloop.core.errors import UsageError


def copy_context(context: BuildContext, target: Path, least_free_bytes: int) -> None:
    """A copy with the modes and times of the files. Raises UsageError if the disk has too little space."""
    needed_bytes = sum(context.files.values())
    free_bytes = shutil.disk_usage(target.parent).free
    if needed_bytes + least_free_bytes > free_bytes:
        raise UsageError(
            f"the context has {needed_bytes / 1e9:.1f} GB, and {target.parent} has space for "
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
