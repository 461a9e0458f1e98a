# ruff: noqa
"""sys.stderr becomes None, sys.stdout an object that raises, then descriptor 2 is closed and taken by a file. Compared: exit
code, how often the object was written to, the file's bytes."""

import os, sys, torch
from _result import fit, net, result, sgd

written = 0


class Refusing:
    def write(self, text):
        global written
        written += 1
        raise OSError("closed")

    flush = isatty = fileno = write


model = net()
opt, out = sgd(model), sys.stdout
fit(model, opt, 20)
sys.stdout, sys.stderr = Refusing(), None
os.close(2)
fd = os.open("own", os.O_RDWR | os.O_CREAT)
loss = fit(model, opt, 400)
sys.stdout = out
result(loss, model, written=written, fd=fd, size=os.fstat(fd).st_size)
