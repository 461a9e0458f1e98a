"""Compile with `torch.compile(model, fullgraph=True)`, which names the next break. Move prints and `.item()` out of
the model, write branches on values as `torch.where`, and register foreign functions as custom operators. Rounding may
differ. Advised by `graph-break`."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__,
    id="whole-graph",
    summary="remove the graph breaks of `torch.compile`",
    effort="hard",
    numerics=Numerics.REORDERED,
)
