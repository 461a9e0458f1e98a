"""An Analysis, or files -> findings."""
