"""Nested settings, read from a JSON file; `a.b=value` on the command line overrides one."""
import json
import os
import sys
from types import SimpleNamespace


def _tree(obj):
    if isinstance(obj, dict):
        return SimpleNamespace(**{k: _tree(v) for k, v in obj.items()})
    return obj


def read_settings(path="settings.json", overrides=None):
    with open(path) as fh:
        raw = json.load(fh)
    for item in overrides if overrides is not None else sys.argv[1:]:
        key, value = item.split("=", 1)
        node = raw
        *head, last = key.split(".")
        for part in head:
            node = node[part]
        node[last] = json.loads(value)
    raw.setdefault("normaliser", "streaming" if os.environ.get("REPAIRED") else "exact")
    return _tree(raw)
