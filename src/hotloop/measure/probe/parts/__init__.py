"""The measurements of a probe of opportunities; one part per file, found by name."""
