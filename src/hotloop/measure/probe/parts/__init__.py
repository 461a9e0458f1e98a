"""What a probe of opportunities can measure; one part per file, found by name."""
