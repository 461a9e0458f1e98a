"""Strategy -> changes of a training. Techniques are data without torch; what acts imports it when it acts."""

from hotloop.change.apply.acts import ABLATIONS, ACTS, BY_HAND, TECHNIQUES
from hotloop.change.apply.strategy_check import check_strategy, settings_of

__all__ = ["ABLATIONS", "ACTS", "BY_HAND", "TECHNIQUES", "check_strategy", "settings_of"]
