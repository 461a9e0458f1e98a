"""LaunchRequest -> the manifest that starts a training on a cluster; targets/ has one file per kind of cluster."""

from __future__ import annotations

from collections.abc import Iterable

from hotloop.core.catalogue import Catalogue
from hotloop.core.errors import UsageError

from .target import LaunchTarget

TARGETS: Catalogue[LaunchTarget] = Catalogue(LaunchTarget, "hotloop.ahead.launch.targets")


def check_options(target: LaunchTarget, given: Iterable[str]) -> None:
    """Raises UsageError for an option (see ``Target.takes``) that this target would ignore."""
    for name in given:
        if name not in target.takes:
            option = "a training command" if name == "command" else f"--{name.replace('_', '-')}"
            users = ", ".join(one.id for one in TARGETS.values() if name in one.takes)
            raise UsageError(f"--target {target.id} does not use {option}: leave it out, or use one of: {users}")
