# ruff: noqa
"""The collector's state as the script left it: enabled, thresholds, callbacks, frozen objects, debug flags, garbage; the
script's callback sees only collections that the script starts. Then gc.callbacks is emptied. Compared: all."""

import gc, torch
from _result import fit, net, result, sgd

calls = []
model = net()
opt = sgd(model)
fit(model, opt, 10)
gc.disable()
gc.set_threshold(123, 4, 5)
gc.callbacks.append(lambda phase, info: calls.append(phase))
for _ in range(20):
    loss = fit(model, opt, 10)
    gc.collect(1)
state = gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.get_debug(), len(gc.garbage)
seen = len(calls)
gc.callbacks.clear()
gc.enable()
loss = fit(model, opt, 100)
gc.collect()
result(loss, model, state=state, calls=seen, callbacks=len(gc.callbacks))
