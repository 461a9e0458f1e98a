"""The catalogues of all that a finding's fix can name: what hotloop applies, and what only the reader can do."""

from hotloop.core.ablations import Ablation
from hotloop.core.acts import Act
from hotloop.core.catalogue import Catalogue
from hotloop.core.techniques import Technique

_TECHNIQUES, _BY_HAND = "hotloop.change.apply.techniques", "hotloop.change.apply.by_hand"

TECHNIQUES: Catalogue[Technique] = Catalogue(Technique, _TECHNIQUES)
BY_HAND: Catalogue[Act] = Catalogue(Act, _BY_HAND)
ABLATIONS: Catalogue[Ablation] = Catalogue(Ablation, "hotloop.change.apply.ablations")
"""No fix names them and no strategy can hold them: only the trials that measure a bound do."""
ACTS: Catalogue[Act] = Catalogue(Act, _TECHNIQUES, _BY_HAND)
