"""fewer-synchronisations: exchange gradients less often, or larger batches."""

from hotloop.core.acts import Act
from hotloop.core.findings import Numerics


class FewerSynchronisations(Act):
    """
    Accumulate gradients over several micro-batches under `model.no_sync()`, or take larger batches. With more samples
    per update, tune the learning rate again. Advised by `exposed-communication`.
    """

    id = "fewer-synchronisations"
    summary = "synchronise gradients less often, or use larger batches"
    effort = "medium"
    numerics = Numerics.REORDERED


ACT = FewerSynchronisations()
