# ruff: noqa
"""Plain tensors with landmines as attributes, tensors that share storage with numpy, inference tensors, sparse, nested,
meta, quantised and zero-size ones as batches and inputs. Compared: landmine calls, exit code."""

import warnings
import torch
from torch.utils.data import DataLoader
from _mines import mine, mines
from _result import one_step, result, sgd

warnings.simplefilter("ignore")
plain = torch.ones(8, 16)
plain.owner, plain.shape_of = mine("owner"), mine("shape_of")
with torch.inference_mode():
    frozen = torch.ones(8, 16)
kinds = [
    plain,
    frozen,
    plain.to_sparse(),
    plain.to_sparse_csr(),
    torch.ones(8, 16, device="meta"),
    torch.ones(0, 16),
    torch.nested.nested_tensor([torch.ones(3), torch.ones(5)]),
    torch.quantize_per_tensor(plain, 0.1, 0, torch.qint8),
    torch.ones(8, 16, dtype=torch.complex64).conj(),
    torch.from_numpy(plain.numpy()),
    torch.ones(1, 16).expand(8, 16),
    plain.to_mkldnn(),
    torch.nested.nested_tensor([torch.ones(3), torch.ones(5)], layout=torch.jagged),
    torch.ones(()),
    torch._efficientzerotensor((8, 16)),
    torch.ones(8, 16).to(torch.float8_e4m3fn),
]


class Any(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(16, 1)

    def forward(self, batch, x):
        return self.a(x)


class First(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.batch = inner, None

    def forward(self, x):
        return self.inner(self.batch, x)


model = First(Any())
opt = sgd(model)
for model.batch in DataLoader(kinds, batch_size=None, collate_fn=lambda v: v):
    loss = one_step(model, opt, torch.randn(8, 16))
for batch in DataLoader(kinds, batch_size=None, collate_fn=lambda v: {"input_ids": v, "attention_mask": v}):
    loss = one_step(model, opt, torch.randn(8, 16))
result(loss, model, **mines())
