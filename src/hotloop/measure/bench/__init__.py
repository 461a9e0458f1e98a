"""Benchmarks are orchestrated here, without torch: probes are started in the training's own interpreter."""
