"""The order of the stages: what a user names -> a report, a comparison, a check, a tuning. Order and nothing else."""
