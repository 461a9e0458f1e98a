"""The rules: one file each, which the catalogue finds; a rule never imports another."""

from hotloop.core.catalogue import Catalogue
from hotloop.core.rules import Rule

RULES: Catalogue[Rule] = Catalogue(Rule, "hotloop.judge.diagnose.rules")
"""Every rule by its id; the first read imports the modules."""
