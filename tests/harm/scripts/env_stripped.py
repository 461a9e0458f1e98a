# ruff: noqa
# command: env -i LC_ALL=C HOME=/nonexistent {python} {script}
"""Started with an empty environment: no PATH, a home that does not exist, the C locale. Compared: exit code, encodings."""

import os, sys, torch
from _result import fit, net, result, sgd

model = net()
loss = fit(model, sgd(model), 60)
result(
    loss,
    model,
    encoding=sys.stdout.encoding,
    home=os.environ["HOME"],
    utf8=sys.flags.utf8_mode,
    path="PATH" in os.environ,
)
