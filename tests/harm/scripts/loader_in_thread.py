# ruff: noqa
"""A loader is iterated by a thread that fills a queue (a prefetcher), another by the main thread, a third nested in a collate
function; a loader is pickled, copied and iterated twice at once. Compared: batches, loss bits."""

import copy, pickle, queue, threading, torch
from torch.utils.data import DataLoader, Dataset
from _result import net, one_step, result, sgd


class Rows(Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, i):
        return torch.full((16,), i / 80)


def collate(rows):
    inner = [x for x in DataLoader(rows, batch_size=4)]
    return torch.cat(inner)


def fill(loader, target):
    for x in loader:
        target.put(x)
    target.put(None)


model = net()
opt = sgd(model)
batches, n = queue.Queue(4), 0
loader = DataLoader(Rows(), batch_size=8, collate_fn=collate)
thread = threading.Thread(target=fill, args=(loader, batches))
thread.start()
while (x := batches.get()) is not None:
    loss = one_step(model, opt, x)
    n += 1
thread.join()
again = pickle.loads(pickle.dumps(loader)), copy.copy(loader), copy.deepcopy(loader)
for a, b, c in zip(*again):
    loss = one_step(model, opt, a + b + c)
    n += 1
for a, b in zip(loader, loader):
    loss = one_step(model, opt, a - b)
result(loss, model, n=n, threads="any")
