import json
import os
from collections import namedtuple

_DEFAULTS = dict(documents=2400, classes=8, lexicon=9000, pieces=3000, max_pieces=160, batch_docs=48, bucket=12,
                 passes=4, width=96, blocks=2, heads=4, lr=7e-4, seed=23, queue_depth=4, keep_encodings=False)
Options = namedtuple("Options", _DEFAULTS)


def options(path="inkwell.json"):
    values = dict(_DEFAULTS)
    with open(path) as fh:
        values.update(json.load(fh))
    if os.environ.get("REPAIRED"):
        values["keep_encodings"] = True
    return Options(**values)
