"""skip-statement: statements of the script whose value nobody reads, left out of the working copy."""

from __future__ import annotations

from hotloop.core.ablations import Ablation


class SkipStatement(Ablation):
    """
    ## What it does
    Writes `pass` in place of each statement that runs a finding's lines, if the statement is a call whose value is
    discarded. If the value is read elsewhere, nobody knows what the training would do without it: there is no bound.
    """

    id = "skip-statement"
    summary = "the statements that run these lines are left out"
    leaves = "all that these statements do is left out"
    edits_statements = True
