"""Strategy -> changes of a training. Techniques are data without torch; what acts imports it when it acts."""

from hotloop.apply.check import check_strategy, settings_of
from hotloop.core.catalogue import Catalogue
from hotloop.core.techniques import Technique

TECHNIQUES: Catalogue[Technique] = Catalogue(Technique, "hotloop.apply.techniques")

__all__ = ["TECHNIQUES", "check_strategy", "settings_of"]
