# ruff: noqa
# command: sh -c 'exec "$0" "$@" >&- 2>&-' {python} {script}
"""Started with standard output and standard error closed, so that the first files opened get their numbers; the script
writes to its own files. Compared: the files' bytes, loss bits (in RESULT.txt)."""

import hashlib, os, torch
from _result import fit, net, result_to_file, sgd

model = net()
opt = sgd(model)
files = [os.open(f"own{i}", os.O_RDWR | os.O_CREAT) for i in range(6)]
for fd in files:
    os.write(fd, b"mine" * 100)
loss = fit(model, opt, 200)
text = b"".join(os.pread(fd, 1 << 20, 0) for fd in files)
result_to_file(loss, model, low=files[:2], bytes=len(text), hash=hashlib.sha1(text).hexdigest()[:8])
