"""A run folder -> an object store at an fsspec URL, and back: several nodes, one report, no shared folder.

Each node mirrors its own run folder under the URL, in blocks that are named by their content, and lists in a manifest
what belongs to it. docs/record.md covers what the user sees, docs/formats.md the layout.
"""
