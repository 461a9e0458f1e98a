# ruff: noqa
"""The script turns into a daemon by two forks and a new session: the grandchild trains, closes the standard streams and
writes its result to a file; the parent waits for it through a pipe. Compared: exit code, the file (RESULT.txt)."""

import os, sys, torch
from _result import fit, net, result, result_to_file, sgd

model = net()
opt = sgd(model)
fit(model, opt, 20)
get, put = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.close(get)
    for fd in (0, 1, 2):
        os.close(fd)
        os.open("/dev/null", os.O_RDWR)
    os.umask(0o27)
    loss = fit(model, opt, 200)
    result_to_file(loss, model, session=os.getsid(0) != 0, draws="any")
    os.write(put, b"done")
    os._exit(0)
os.wait()
os.close(put)
print(os.read(get, 10).decode())
os.close(get)
result(fit(model, opt, 20), model)
