"""One file per kind of cluster; each defines one Target."""
