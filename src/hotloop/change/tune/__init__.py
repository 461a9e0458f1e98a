"""Candidates, measured in processes of their own -> Trials with a verdict. No torch here."""
