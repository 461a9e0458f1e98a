# ruff: noqa
"""Anomaly detection inside and outside of a compiled function. Compared: graph breaks and why they were made."""

import torch
from _result import fit, net, result, sgd


@torch.compile(backend="aot_eager")
def watched(x):
    with torch.autograd.set_detect_anomaly(True):
        y = (x * 2).sin()
    return y.sum()


model = net()
loss = fit(model, sgd(model), 5)
value = watched(model(torch.ones(4, 16)))
with torch.autograd.detect_anomaly(check_nan=False):
    value.backward()
breaks = torch._dynamo.utils.counters["graph_break"]
result(loss, breaks=sorted(reason[:300] for reason in breaks), anomaly=torch.is_anomaly_enabled())
