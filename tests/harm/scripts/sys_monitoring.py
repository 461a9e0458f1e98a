# ruff: noqa
"""Where Python has sys.monitoring, the script takes the tool ids of a debugger, a profiler and of coverage and counts its
own calls. Compared: that the ids are free, the counts; nothing where it does not exist."""

import sys, torch
from _result import fit, net, result, sgd

counts, free = {}, "none"
if hasattr(sys, "monitoring"):
    m = sys.monitoring
    free = [i for i in range(6) if m.get_tool(i) is None]
    for i in (m.DEBUGGER_ID, m.COVERAGE_ID, m.PROFILER_ID):
        m.use_tool_id(i, f"own{i}")

    def count(code, offset):
        counts[code.co_name] = counts.get(code.co_name, 0) + 1

    m.register_callback(m.PROFILER_ID, m.events.PY_START, count)
    for f in (fit, torch.nn.Linear.forward):
        m.set_local_events(m.PROFILER_ID, f.__code__, m.events.PY_START)
model = net()
loss = fit(model, sgd(model), 40)
result(loss, model, free=free, counts=counts)
