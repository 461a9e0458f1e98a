"""LaunchRequest -> the manifest that starts a training on a cluster; targets/ has one file per kind of cluster."""

from __future__ import annotations

from hotloop.core.catalogue import Catalogue

from .target import Target

TARGETS: Catalogue[Target] = Catalogue(Target, "hotloop.launch.targets")
