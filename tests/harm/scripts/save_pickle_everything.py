# ruff: noqa
"""pickle, deepcopy, torch.save (all formats) of model, optimizer, scaler, scheduler, loader and their classes, in forward,
in hooks and between steps. Compared: hashes of the bytes."""

import copy, hashlib, io, pickle, torch
from torch.utils.data import DataLoader
from _result import net, one_step, result, sgd

model = net()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler, rows = torch.amp.GradScaler("cpu"), torch.randn(80, 16)
loader = DataLoader(rows, batch_size=8)
scheduler = torch.optim.lr_scheduler.StepLR(opt, 5)
texts = []


def take(value):
    texts.append(hashlib.sha1(pickle.dumps(value)).hexdigest()[:6])


handle = model.register_forward_hook(lambda m, a, out: take([p.detach().numpy() for p in m.parameters()]))
for epoch in range(2):
    for x in loader:
        loss = one_step(model, opt, x)
        scheduler.step()
    take([float(v["step"]) for v in opt.state.values()])
handle.remove()
for value in (
    model,
    opt,
    scheduler.state_dict(),
    scaler,
    loader,
    torch.nn.Linear,
    torch.optim.Adam,
    torch.save,
    DataLoader,
    type(iter(loader)).__mro__,
):
    try:
        pickle.loads(pickle.dumps(value))
        copy.deepcopy(value)
        texts.append("well")
    except Exception as error:
        texts.append(type(error).__name__)
for new in (True, False):
    buffer = io.BytesIO()
    torch.save(
        {"m": model.state_dict(), "o": opt.state_dict(), "whole": model}, buffer, _use_new_zipfile_serialization=new
    )
    texts.append(buffer.tell() >> 4)
    texts.append(b"hotloop" in buffer.getvalue())
result(loss, model, texts=hashlib.sha1(str(texts).encode()).hexdigest()[:8], last=texts[-14:])
