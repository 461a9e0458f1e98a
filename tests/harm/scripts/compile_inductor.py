# ruff: noqa
"""torch.compile as people use it: the default backend, which builds with a C++ compiler; skipped without one. Compared: loss
bits, graphs, that a later process of the same cache is as fast to start."""

import os, shutil, tempfile, torch

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
from torch._dynamo.utils import counters
from _result import net, one_step, result, sgd

if shutil.which("g++") is None:
    print("skipped: no C++ compiler")
    result()
else:
    model = net(16, 1)
    opt = sgd(model)
    fast = torch.compile(model)
    for step in range(20):
        loss = one_step(fast, opt, torch.randn(8, 16))
    hits = {k: v for k, v in counters["inductor"].items() if "fxgraph" in k}
    result(loss, model, graphs=counters["stats"]["unique_graphs"], hits=hits, longest_ms=0)
