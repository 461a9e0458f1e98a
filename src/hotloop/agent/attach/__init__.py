"""The bootstrap in the training's own processes, and the only owner of patches."""
