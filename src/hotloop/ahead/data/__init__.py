"""Texts -> memory-mapped token files, and datasets over them. Only the dataset files need torch."""
