# ruff: noqa
"""Checkpoints are written by threads; at the end the script joins every thread but its own, then waits until one is
left. Compared: whether it ends, how many threads it saw."""

import io, threading, time, torch
from _result import net, one_step, result, sgd

model = net()
opt = sgd(model)
buffers = []
for step in range(120):
    loss = one_step(model, opt, torch.randn(8, 16))
    if step % 40 == 39:
        buffers.append(io.BytesIO())
        threading.Thread(target=torch.save, args=(model.state_dict(), buffers[-1])).start()
joined = 0
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
        joined += 1
while threading.active_count() > 1:
    time.sleep(0.01)
result(loss, saved=sum(b.tell() > 0 for b in buffers), seen=threading.active_count())
