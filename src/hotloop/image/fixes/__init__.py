"""What may make a build faster, one file each: a pure function from a recipe to a changed one."""

from hotloop.core.catalogue import Catalogue
from hotloop.image.fix import Fix

FIXES = Catalogue(Fix, "hotloop.image.fixes")
