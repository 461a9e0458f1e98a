"""Costs that a trial takes away to measure a bound, one file each; never a change of the user's training."""
