# ruff: noqa
"""Eleven steps, then an evaluation of many small batches. Compared: CPU time of the evaluation."""

import time, torch
from _result import fit, net, result, sgd

model = net(32, 3)
loss = fit(model, sgd(model), 11, 32)
start = time.process_time()
with torch.inference_mode():
    for _ in range(4000):
        out = model(torch.ones(1, 32))
result(loss, out=float(out), evaluation_cpu_s=time.process_time() - start)
