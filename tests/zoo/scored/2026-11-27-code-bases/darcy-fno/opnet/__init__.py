"""Neural operators for steady diffusion on the unit torus."""
