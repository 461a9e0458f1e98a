"""One module a format of files: how it is recognized, and what its rules read."""
