"""dense-embedding-gradient: every step fills and traverses an entire embedding table but uses only a few rows."""

from __future__ import annotations

from hotloop.core.analysis import Analysis, RankAnalysis
from hotloop.core.findings import REMOVED_LOW_RATIO, Basis, Finding, Fix, saving_within
from hotloop.core.rules import rule
from hotloop.judge.diagnose.measured import format_share

LEAST_ELEMENTS = 4_000_000
"""A gradient of 16 MB in float32; steps fill that much memory anyway."""
MOST_USED_RATIO = 0.15
"""Share of the rows, estimated from the look-ups of a step; each look-up uses at most one row."""
LEAST_PART_RATIO = 0.5
"""Share of the model's parameters; below it, the optimizer has other work."""
FLOOR_RATIO = 0.2
MOST_FORWARD_RATIO = 0.25
"""Share of backward and optimizer; a forward that multiplies with all rows (a tied output layer) takes longer."""

USUAL_BACKWARD, LIKELY_PART = 1.0, 0.85
"""Rules of thumb: without the table, backward takes as long as the forward; this part of the time beyond that fills the
table's gradient. Two code bases (2026-11-27) saved 0.50 and 0.66 of the step; these rules gave 0.56 and 0.51."""


@rule("dense-embedding-gradient", "every step updates an entire embedding table but uses only a few of its rows")
def dense_embedding_gradient(analysis: Analysis) -> Finding | None:
    """## What it does
    If the largest embedding table has a dense gradient, compares the table's number of rows with the number of tokens
    per step.

    ## Why it costs
    Backward fills a gradient that is as large as the entire table with zeros. The optimizer then reads and writes the
    table and the table's running averages, although only the rows in this batch have a gradient. This takes the same
    time whatever the batch size.

    ## How to recognize it
    The table holds at least half of the model's parameters and belongs to one module, a step uses at most 15 % of the
    rows, and the forward takes less than a quarter of the time that backward and the optimizer take, so the forward
    does not multiply by all rows. The rows are counted in the first micro-batches or, if that fails, estimated from the
    number of tokens per step.

    ## What to do
    Use `sparse=True` with `SparseAdam`, SGD or Adagrad for the table. A fused optimizer is faster, but still updates
    all rows.

    ## When it is wrong
    Adam's running averages also change rows without a gradient, and weight decay changes all rows, so training with
    sparse updates gives slightly different results.
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
    # The optimizer's part is certain; backward's is likely what exceeds the usual multiple of the forward.
    sure = min(1.0, part) * rank.breakdown.share("optimizer")
    beyond = max(0.0, rank.breakdown.share("backward") - USUAL_BACKWARD * rank.breakdown.share("forward"))
    cost_ratio = min(1.0, part) * phases_ratio
    return Finding(
        title=f"the gradient of an embedding table of {rows:,} rows is dense, but a step uses at most {used:,.0f} of "
        f"them: backward and optimizer, {format_share(phases_ratio)} of the step, process every row",
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
    """Upper bound on the rows of a table that a step uses; None if it was not recorded."""
    if rank.table_rows is None:
        return rank.tokens_per_step
    return rank.table_rows * max(1.0, rank.mean["backwards"])
