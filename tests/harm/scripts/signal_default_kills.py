# ruff: noqa
# exit: -10
"""SIGUSR1 has its default action; another process sends it in mid-training. Compared: exit code (killed by it)."""

import os, signal, subprocess, time, torch
from _result import fit, net, result, sgd

model = net()
opt = sgd(model)
loss = fit(model, opt, 40)
shown = signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
result(loss, model, default=shown)
subprocess.Popen(["sh", "-c", f"sleep 0.2; kill -USR1 {os.getpid()}"])
end = time.perf_counter() + 5
while time.perf_counter() < end:
    fit(model, opt, 10)
