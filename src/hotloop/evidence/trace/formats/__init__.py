"""One file per trace format, found by the catalogue in hotloop.evidence.trace.inputs."""
