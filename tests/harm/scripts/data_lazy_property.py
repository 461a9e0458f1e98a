# ruff: noqa
"""A data set that opens its file when first asked, in each of two workers, by a property named dataset; an early look in
the parent would let them share one file position. Compared: which process opened it, the sum of what was read."""

import os, struct, tempfile, torch
from torch.utils.data import DataLoader, Dataset
from _result import one_step, result, sgd, settle

path = os.path.join(tempfile.mkdtemp(), "records")
with open(path, "wb") as file:
    for i in range(2000):
        file.write(struct.pack("<16f", *[i / 2000] * 16))
parent = os.getpid()


class Records(Dataset):
    file, opened_by = None, None

    @property
    def dataset(self):
        if self.file is None:
            self.file, self.opened_by = open(path, "rb", buffering=0), os.getpid()
        return self.file

    def __len__(self):
        return 2000

    def __getitem__(self, i):
        self.dataset.seek(64 * i)
        return torch.tensor(struct.unpack("<16f", self.dataset.read(64))), int(self.opened_by == parent)


model = torch.nn.Linear(16, 1)
opt = sgd(model)
total = early = 0
for x, by_parent in DataLoader(Records(), batch_size=20, num_workers=2):
    total, early = total + round(float(x[:, 0].double().sum() * 2000)), early + int(by_parent.sum())
    loss = one_step(model, opt, x)
settle()
result(loss, model, total=total, early=early)
