# ruff: noqa
"""The script restarts itself by os.execv after some steps, as elastic launchers do, keeping its process id; then once more with
a changed environment. Compared: exit code, that each life ran, loss bits."""

import os, sys, torch
from _result import fit, net, result, sgd

life = int(os.environ.get("LIFE", 0))
model = net()
loss = fit(model, sgd(model), 20)
print("life", life, flush=True)
if life == 0:
    os.environ["LIFE"] = "1"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
result(loss, model, life=life)
