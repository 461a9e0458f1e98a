"""The training library on top of apply: Trainer, checkpoints, loader, prefetch."""
