"""Options of a run: the JSON file, over the defaults below."""
import json
import os
from types import SimpleNamespace

DEFAULTS = dict(seed=3, entities=600000, relations=60, triples=400000, dim=64, batch_size=512, negatives=4096,
                steps=260, lr=1e-3, scorer="conve", report_every=50, probe_every=130, sparse_entities=False)


def load(path):
    with open(path) as fh:
        opts = {**DEFAULTS, **json.load(fh)}
    if os.environ.get("REPAIRED"):
        opts["sparse_entities"] = True
    return SimpleNamespace(**opts)
