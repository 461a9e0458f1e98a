"""One file per program that builds images: a subclass of Builder, found by the catalogue."""

from hotloop.core.catalogue import Catalogue
from hotloop.image.builder import Builder

BUILDERS = Catalogue(Builder, "hotloop.image.builders")  # type: ignore[type-abstract]
