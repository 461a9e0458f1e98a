"""Findings -> techniques, strategies, trials, verdicts and patches."""
