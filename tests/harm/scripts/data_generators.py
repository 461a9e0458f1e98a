# ruff: noqa
"""Own generators for shuffling, random samplers, random_split, numpy and random draws in the data set, seeds per worker:
all draws as alone. Compared: the samples' order, states of all generators."""

import hashlib, random, numpy, torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, WeightedRandomSampler, random_split
from _result import net, one_step, result, sgd

order = []
numpy.random.seed(0)


class Rows(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, i):
        order.append((i, random.random(), numpy.random.rand(), float(torch.rand(1))))
        return torch.rand(16)


model = net()
opt = sgd(model)
g = torch.Generator().manual_seed(3)
a, b = random_split(Rows(), [100, 60], generator=g)
loaders = (
    DataLoader(a, batch_size=8, shuffle=True),
    DataLoader(b, batch_size=8, sampler=RandomSampler(b, generator=g)),
    DataLoader(a, batch_size=8, sampler=WeightedRandomSampler(torch.rand(100), 50)),
    DataLoader(b, batch_size=8, shuffle=True, generator=g),
)
for epoch in range(2):
    for loader in loaders:
        for x in loader:
            loss = one_step(model, opt, x)
states = hashlib.sha1(g.get_state().numpy().tobytes() + numpy.random.get_state()[1].tobytes()).hexdigest()[:8]
result(loss, model, order=hashlib.sha1(str(order).encode()).hexdigest()[:8], states=states)
