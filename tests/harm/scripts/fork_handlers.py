# ruff: noqa
"""os.register_at_fork handlers of the script's own: order, counts and what the child may do in them (train, print). And
vfork-like children by posix_spawn and subprocess with pass_fds. Compared: the order, exit codes."""

import os, subprocess, sys, torch
from _result import descriptors, fit, net, result, sgd

order = []
model = net()
opt = sgd(model)
for n in range(2):
    os.register_at_fork(
        before=lambda n=n: order.append(f"b{n}"),
        after_in_parent=lambda n=n: order.append(f"p{n}"),
        after_in_child=lambda n=n: (order.append(f"c{n}"), fit(model, opt, 1)),
    )
fit(model, opt, 20)
codes = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        print("child", order[-4:], descriptors(), flush=True)
        os._exit(4)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
loss = fit(model, opt, 20)
pid = os.posix_spawn("/bin/sh", ["sh", "-c", "ls /proc/self/fd | wc -l; exit 3"], {})
codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
held = os.open("/dev/null", os.O_RDONLY)
done = subprocess.run(["sh", "-c", "ls /proc/self/fd | wc -l"], pass_fds=[held], capture_output=True, text=True)
result(loss, model, order="".join(order), codes=codes, open=done.stdout.strip())
