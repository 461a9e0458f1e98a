"""whole-graph: remove what makes `torch.compile` leave the graph."""

from hotloop.core.acts import Act
from hotloop.core.findings import Numerics


class WholeGraph(Act):
    """
    Compile with `torch.compile(model, fullgraph=True)`, which names the next break. Move prints and `.item()` out of
    the model, write branches on values as `torch.where`, and register foreign functions as custom operators. Rounding
    may differ. Advised by `graph-break`.
    """

    id = "whole-graph"
    summary = "remove the graph breaks of `torch.compile`"
    effort = "hard"
    numerics = Numerics.REORDERED


ACT = WholeGraph()
