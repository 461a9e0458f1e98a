# ruff: noqa
"""The script's own profilers: torch.profiler with a schedule, autograd's, cProfile, tracemalloc, record_function. Compared:
names and counts of the script's operators in them."""

import cProfile, pstats, tracemalloc, torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from _result import net, one_step, result, sgd

model = net()
opt = sgd(model)
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=5, warmup=2, active=4)) as p:
    for _ in range(14):
        with record_function("mine"):
            loss = one_step(model, opt, torch.randn(8, 16))
        p.step()
events = {e.key: e.count for e in p.key_averages()}
own = cProfile.Profile()
own.enable()
for _ in range(10):
    loss = one_step(model, opt, torch.randn(8, 16))
own.disable()
calls = {
    f"{k[2]}": v[0]
    for k, v in pstats.Stats(own).stats.items()
    if k[0].endswith(("linear.py", "activation.py", "_result.py"))
}
tracemalloc.start()
loss = one_step(model, opt, torch.randn(8, 16))
traced = tracemalloc.is_tracing()
tracemalloc.stop()
result(loss, model, events=sum(events.values()), names=len(events), mine=events.get("mine"), calls=calls, traced=traced)
