"""inkwell: topic classification from raw text."""
