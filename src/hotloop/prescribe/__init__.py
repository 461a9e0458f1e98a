"""Findings -> the order in which to treat them, and what their fixes save together."""

from hotloop.prescribe.combine import combine_savings, state_rule_savings
from hotloop.prescribe.rank import rank_findings

__all__ = ["combine_savings", "rank_findings", "state_rule_savings"]
