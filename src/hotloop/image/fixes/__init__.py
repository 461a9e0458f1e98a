"""What may make a build faster, one file each: a pure function from a recipe to a changed one."""

from hotloop.core.catalogue import Catalogue
from hotloop.image.fix import ImageFix

FIXES = Catalogue(ImageFix, "hotloop.image.fixes")
