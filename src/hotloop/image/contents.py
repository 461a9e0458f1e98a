"""Files of two images -> what differs, less what a fix is meant to leave out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hotloop.core.image import ImageContents

from .builder import FoundFile

SHOWN = 10
"""Paths that a report names; it counts all."""


def compare_contents(
    before: Mapping[str, FoundFile],
    after: Mapping[str, FoundFile],
    *,
    left_out: Iterable[str] = (),
    caches: Iterable[str] = (),
    unstable: Iterable[str] = (),
) -> ImageContents:
    """``left_out`` are paths that the fix takes out of the context, ``caches`` folders that it empties, ``unstable``
    paths that differ from build to build of the unchanged file. Paths have no leading slash."""
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
