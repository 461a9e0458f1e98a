"""Adapters for other frameworks, one file each; only that file imports the framework."""
