# ruff: noqa
"""faulthandler: enabled with a file, a watchdog that dumps later and is cancelled, a dump registered on SIGUSR2 and raised in
forward. Compared: that they are still on, threads in the dump, functions of the script in it."""

import faulthandler, os, signal, torch
from _result import fit, net, result, sgd

file = open("dump", "w+")
faulthandler.enable(file)
faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)
faulthandler.dump_traceback_later(60, exit=True, file=file)
model = net()
opt = sgd(model)
fit(model, opt, 30)


def look(*args):
    signal.raise_signal(signal.SIGUSR2)


handle = model.register_forward_hook(look)
loss = fit(model, opt, 2)
handle.remove()
faulthandler.cancel_dump_traceback_later()
on = faulthandler.is_enabled()
taken = faulthandler.unregister(signal.SIGUSR2)
file.flush()
text = open("dump").read()
lines = [x for x in text.splitlines() if "_call_impl" in x or "forward" in x]
result(
    loss,
    model,
    on=on,
    taken=taken,
    stacks=text.count("most recent call first"),
    looks=text.count("in look"),
    calls=text.count("in _call_impl"),
    threads="any",
)
