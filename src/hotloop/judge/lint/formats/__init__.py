"""One module for each format of files: how it is recognized, and what its rules read."""
