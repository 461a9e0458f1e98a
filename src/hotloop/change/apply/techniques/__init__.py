"""The techniques: one file each, found by the catalogue in hotloop.change.apply."""
