# ruff: noqa
"""The script closes every descriptor but the standard ones in mid-training, then opens files of its own on these
numbers and trains on. Compared: the bytes of the files."""

import hashlib, os, tempfile, torch
from _result import fit, net, result, sgd

model = net()
opt = sgd(model)
fit(model, opt, 20)
os.closerange(3, 512)
folder = tempfile.mkdtemp()
files = [os.open(os.path.join(folder, str(i)), os.O_RDWR | os.O_CREAT) for i in range(16)]
for fd in files:
    os.write(fd, b"checkpoint" * 100)
loss = fit(model, opt, 3000)
text = b"".join(os.pread(fd, 1 << 24, 0) for fd in files)
result(loss, model, bytes=len(text), hash=hashlib.sha1(text).hexdigest()[:8], numbers=files)
