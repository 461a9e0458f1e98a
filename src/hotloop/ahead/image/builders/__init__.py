"""One file per program that builds images: a subclass of Builder, found by the catalogue."""

from hotloop.ahead.image.builder import Builder
from hotloop.core.catalogue import Catalogue

BUILDERS = Catalogue(Builder, "hotloop.ahead.image.builders")  # type: ignore[type-abstract]
