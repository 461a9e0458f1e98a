"""dense-embedding-gradient: every step fills and walks over a table of which it uses a few rows."""

from __future__ import annotations

from hotloop.core.analysis import Analysis
from hotloop.core.findings import REMOVED_LOW_RATIO, Basis, Finding, Fix, saving_within
from hotloop.core.rules import rule
from hotloop.diagnose.wording import format_share

LEAST_ELEMENTS = 4_000_000
"""A gradient of 16 MB in float32: less than what a step fills anyway."""
MOST_USED_RATIO = 0.05
"""Of the rows, by the tokens of a step; each token uses one row at most."""
LEAST_PART_RATIO = 0.5
"""Of the model's parameters: else the optimizer has other work."""
FLOOR_RATIO = 0.2
MOST_FORWARD_RATIO = 0.5
"""Of the optimizer: a forward that multiplies with all rows (an output layer that shares them) takes longer."""


@rule("dense-embedding-gradient", "every step fills and walks over a table of which it uses a few rows")
def dense_embedding_gradient(analysis: Analysis) -> Finding | None:
    """## What it does
    Compares the rows of the largest embedding table with the tokens of a step, where the table's gradient is dense.

    ## Why it costs
    Backward fills a gradient of the whole table with zeros, and the optimizer reads and writes the table and its
    averages, though only the rows of this batch have a gradient. The time does not depend on the batch.

    ## How to tell
    The table has half of the model's parameters or more and belongs to one module, a step uses at most one row in
    twenty, and the forward takes less than half of the optimizer's time: it does not multiply with all rows.

    ## What to do
    `sparse=True` with `SparseAdam`, SGD or Adagrad for the table. A fused optimizer walks over all rows faster, and
    still over all rows.

    ## When it is wrong
    Adam moves rows without a gradient too, by their averages, and weight decay all of them: sparse updates train a
    little differently.
    """
    rank = analysis.lead
    table, used = rank.dense_table, rank.tokens_per_step
    if table is None or not used or not rank.model_parameters:
        return None
    rows, width = table
    part = rows * width / rank.model_parameters
    phases_ratio = rank.breakdown.share("optimizer") + rank.breakdown.share("backward")
    if (
        rows * width < LEAST_ELEMENTS
        or used > MOST_USED_RATIO * rows
        or part < LEAST_PART_RATIO
        or phases_ratio < FLOOR_RATIO
        or rank.breakdown.share("forward") > MOST_FORWARD_RATIO * rank.breakdown.share("optimizer")
    ):
        return None
    # What backward does beside filling the gradient is not known: the optimizer's part is sure, of backward none.
    sure = min(1.0, part) * rank.breakdown.share("optimizer")
    cost_ratio = min(1.0, part) * phases_ratio
    return Finding(
        title=f"the gradient of an embedding table of {rows:,} rows is dense, and a step uses at most {used:,.0f} of "
        f"them: backward and optimizer, {format_share(phases_ratio)} of the step, fill and walk over all",
        phase="optimizer",
        cost_ns=round(cost_ratio * rank.step_mean_ns),
        cost_ratio=cost_ratio,
        saving=saving_within(cost_ratio, REMOVED_LOW_RATIO * sure, sure, cost_ratio, Basis.SIMULATED),
        evidence={"rows": rows, "width": width, "tokens_per_step": round(used), "parameters_ratio": round(part, 3)},
        where=tuple(one.where for one in rank.optimizers if one.where is not None)[:1],
        fix=Fix(technique="sparse-gradients"),
    )
