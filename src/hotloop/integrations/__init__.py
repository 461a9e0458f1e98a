"""Adapters for other frameworks and tools, one file each; only that file imports the library."""
