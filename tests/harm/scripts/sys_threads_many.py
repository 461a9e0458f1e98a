# ruff: noqa
"""Twelve short threads run forwards and backwards of the same model while the main thread trains it; thread-local state, names
and counts; a thread that outlives main by a moment. Compared: thread names, counts, exit code."""

import threading, torch
from _result import net, one_step, result, sgd

model, other = net(), net()
opt = sgd(model)
done = []


def look(n):
    with torch.no_grad():
        for _ in range(20):
            other(torch.full((4, 16), n / 12))
    other(torch.full((4, 16), n / 12)).sum().backward()
    done.append(threading.current_thread().name)


for n in range(12):
    thread = threading.Thread(target=look, args=(n,), name=f"own-{n}")
    thread.start()
    for _ in range(5):
        loss = one_step(model, opt, torch.full((8, 16), n / 12))
    thread.join()
names = [t.name for t in threading.enumerate()]
threading.Thread(target=lambda: threading.Event().wait(0.2)).start()
result(loss, model, done=len(set(done)), names=names, active=threading.active_count(), threads="any")
