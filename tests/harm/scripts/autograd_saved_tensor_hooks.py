# ruff: noqa
"""saved_tensors_hooks, anomaly mode and graph hooks of the script's own count what is saved and run. Compared: counts,
names of the graph's nodes."""

import warnings, torch
from _result import net, one_step, result, sgd

warnings.simplefilter("ignore")
saved, nodes = [], []
model = net()
opt = sgd(model)
with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
    for _ in range(20):
        loss = one_step(model, opt, torch.randn(8, 16))
with torch.autograd.detect_anomaly():
    for _ in range(10):
        loss = one_step(model, opt, torch.randn(8, 16))
out, todo = model(torch.ones(1, 16)), []
todo.append(out.grad_fn)
while todo:
    node = todo.pop()
    nodes.append(node.name())
    todo += [n for n, _ in node.next_functions if n is not None]
handle = torch.autograd.graph.register_multi_grad_hook(list(model.parameters()), lambda g: saved.append(len(g)))
loss = one_step(model, opt, torch.randn(8, 16))
result(loss, model, saved=len(saved), elements=sum(saved), nodes=len(nodes))
