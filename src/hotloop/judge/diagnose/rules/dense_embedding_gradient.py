"""dense-embedding-gradient: every step fills and walks over a table of which it uses a few rows."""

from __future__ import annotations

from hotloop.core.analysis import Analysis, RankAnalysis
from hotloop.core.findings import REMOVED_LOW_RATIO, Basis, Finding, Fix, saving_within
from hotloop.core.rules import rule
from hotloop.judge.diagnose.measured import format_share

LEAST_ELEMENTS = 4_000_000
"""A gradient of 16 MB in float32: less than what a step fills anyway."""
MOST_USED_RATIO = 0.15
"""Of the rows, by what a step looks up; each look-up uses one row at most."""
LEAST_PART_RATIO = 0.5
"""Of the model's parameters: else the optimizer has other work."""
FLOOR_RATIO = 0.2
MOST_FORWARD_RATIO = 0.25
"""Of backward and optimizer: a forward that multiplies with all rows (an output layer sharing them) takes longer."""

USUAL_BACKWARD, LIKELY_PART = 1.0, 0.85
"""Rule of thumb: a backward without the table takes as long as the forward, and of its time beyond that so much fills
the table's gradient. Of two code bases (2026-11-27) 0.50 and 0.66 of the step were saved: 0.56 and 0.51 by these."""


@rule("dense-embedding-gradient", "every step fills and walks over a table of which it uses a few rows")
def dense_embedding_gradient(analysis: Analysis) -> Finding | None:
    """## What it does
    Compares the rows of the largest embedding table with the tokens of a step, where the table's gradient is dense.

    ## Why it costs
    Backward fills a gradient of the whole table with zeros, and the optimizer reads and writes the table and its
    averages, though only the rows of this batch have a gradient. The time does not depend on the batch.

    ## How to recognize it
    The table has half of the model's parameters or more and belongs to one module, a step uses at most 15 % of the
    rows, and the forward takes less than a quarter of backward's and the optimizer's time: it does not multiply with
    all rows. The rows are those that the first micro-batches looked up, else the tokens of a step.

    ## What to do
    `sparse=True` with `SparseAdam`, SGD or Adagrad for the table. A fused optimizer walks over all rows faster, and
    still over all rows.

    ## When it is wrong
    Adam moves rows without a gradient too, by their averages, and weight decay all of them: sparse updates train a
    little differently.
    """
    rank = analysis.lead
    table, used = rank.dense_table, _rows_used(rank)
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
        or rank.breakdown.share("forward") > MOST_FORWARD_RATIO * phases_ratio
    ):
        return None
    # The optimizer's part is sure; of backward likely what it takes beyond the usual multiple of the forward.
    sure = min(1.0, part) * rank.breakdown.share("optimizer")
    beyond = max(0.0, rank.breakdown.share("backward") - USUAL_BACKWARD * rank.breakdown.share("forward"))
    cost_ratio = min(1.0, part) * phases_ratio
    return Finding(
        title=f"the gradient of an embedding table of {rows:,} rows is dense, and a step uses at most {used:,.0f} of "
        f"them: backward and optimizer, {format_share(phases_ratio)} of the step, fill and walk over all",
        phase="optimizer",
        cost_ns=round(cost_ratio * rank.step_mean_ns),
        cost_ratio=cost_ratio,
        saving=saving_within(
            cost_ratio, REMOVED_LOW_RATIO * sure, sure + LIKELY_PART * beyond, cost_ratio, Basis.SIMULATED
        ),
        evidence={"rows": rows, "width": width, "rows_per_step": round(used), "parameters_ratio": round(part, 3)},
        where=tuple(one.where for one in rank.optimizers if one.where is not None)[:1],
        fix=Fix(technique="sparse-gradients"),
    )


def _rows_used(rank: RankAnalysis) -> float | None:
    """At most so many rows of a table are used in a step; None where that was not seen."""
    if rank.table_rows is None:
        return rank.tokens_per_step
    return rank.table_rows * max(1.0, rank.mean["backwards"])
