"""A LiveRun -> other people's monitoring: Prometheus, OTLP, TensorBoard, JSON lines. One file per target."""

from __future__ import annotations

from hotloop.core.catalogue import Catalogue

from .target import Target

__all__ = ["TARGETS", "Target"]

TARGETS: Catalogue[Target] = Catalogue(Target, "hotloop.show.export.targets")
