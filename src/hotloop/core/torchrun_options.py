"""The options of torchrun, with dashes: those that distribute processes over nodes, and the others."""

from __future__ import annotations

LAYOUT = frozenset(
    {"nnodes", "nproc-per-node", "node-rank", "master-addr", "master-port", "local-addr"}
    | {"rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf"}
)
KEPT = frozenset(
    {"max-restarts", "monitor-interval", "start-method", "role", "log-dir", "redirects", "tee", "numa-binding"}
    | {"local-ranks-filter", "signals-to-handle", "shutdown-timeout", "logs-specs", "event-log-handler"}
    | {"duplicate-stdout-filters", "duplicate-stderr-filters"}
)
"""Options of torchrun that take a value."""
FLAGS = ("module", "no-python", "run-path", "virtual-local-rank")
SHORT = {"-m": "module", "-r": "redirects", "-t": "tee"}
