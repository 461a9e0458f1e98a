# ruff: noqa
# exit: 3
"""atexit functions, a thread that is not a daemon, finalizers, an exit function that trains on, one that fails, and one
that exits with a code of its own by os._exit. Compared: order of what is printed, number of exit functions, exit code."""

import atexit, os, threading, time, weakref, torch
from _result import fit, net, result, sgd

model = net()
opt = sgd(model)


class Held:
    pass


held = Held()
weakref.finalize(held, print, "finalizer", flush=True)
atexit.register(lambda: (print("last: leaves", flush=True), os._exit(3)))
atexit.register(lambda: result(fit(model, opt, 5), model, at_exit=True))
atexit.register(lambda: 1 / 0)
atexit.register(print, "first", flush=True)
threading.Thread(target=lambda: (time.sleep(0.3), print("thread", flush=True))).start()
loss = fit(model, opt, 40)
result(loss, model, exit_functions=atexit._ncallbacks())
