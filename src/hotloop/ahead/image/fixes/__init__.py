"""Changes that may make a build faster, one file each: a pure function from a recipe to a changed one."""

from hotloop.ahead.image.fix import ImageFix
from hotloop.core.catalogue import Catalogue

FIXES = Catalogue(ImageFix, "hotloop.ahead.image.fixes")
