"""The rules: one file each, found by the catalogue; a rule never imports another."""

from hotloop.core.catalogue import Catalogue
from hotloop.core.rules import Rule

RULES: Catalogue[Rule] = Catalogue(Rule, "hotloop.judge.diagnose.rules")
"""Every rule by its id; the modules are imported when it is first read."""
