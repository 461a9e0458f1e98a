"""Pairs of texts that differ in what makes a finding serious: the first has one of at least medium, the second none."""

from __future__ import annotations

from .settings import ACCELERATE, DEEPSPEED, LIGHTNING
from .texts import (
    CLIPPED,
    DATASET,
    LOOP,
    MODULE,
    PREFIXED,
    SCHEDULED,
    SHARED,
    STARTED,
    VALIDATED,
    WRAPPED,
    change,
)

P = "python"
HEAD = "class Pool(nn.Module):\n    def __init__(self):\n        self.pool = nn.{}\nclass Net"
BACK = "        loss.backward()\n"
LAYERS = change(MODULE, "self.drop = ", "self.rows = [{}]\n        self.drop = ")
LOSSES = change(LOOP, "loss = criterion(model(x), y)", "loss, parts = compute_loss(model(x), y)")
CAUGHT = change(LOOP, BACK, "        try:\n            loss.backward()\n        except RuntimeError as e:\n{}")
RANKED = STARTED + LOOP.replace("criterion = ", "model = nn.parallel.DistributedDataParallel(model)\ncriterion = ")
SKIPPED = change(RANKED, BACK, "        if torch.isnan({}):\n            continue\n" + BACK)
STREAM = """
import torch
from torch.utils.data import DataLoader, IterableDataset
class Rows(IterableDataset):
    def __iter__(self):
        yield from {}
loader = DataLoader(Rows(), num_workers=4)
"""
HELD = (
    change(DATASET, "import pandas", "import h5py, torch\nimport pandas").replace(
        "    def __getitem__",
        "    def __init__(self, path):\n        self.file = {}\n    def __getitem__",
    )
    + "loader = torch.utils.data.DataLoader(Rows('a'), num_workers=4)\n"
)
HELD = HELD.replace("{get}", "self.file['x'][i]")
STOPPED = change(RANKED, "loader =", "valid = DataLoader(data, sampler=DistributedSampler(data))\nloader =") + (
    "    with torch.no_grad():\n        for x, y in valid:\n            total += criterion(model(x), y)\n"
    "    if stale > {}:\n        break\n"
)
TWICE = change(
    LOOP,
    "loss = criterion(model(x), y)",
    "a = model(x)\n{}        b = model(x)\n        loss = criterion(a + b, y)",
)
KEEPS_BEST = SHARED + "best_acc = max(best_acc, right)\n"
SCORED = "max_epochs: 10\n  callbacks: [{{init_args: {{monitor: val_wer, mode: {}}}}}]"
RATED = change(SCHEDULED, "CosineAnnealingLR(optimizer, epochs)", "LambdaLR(optimizer, lambda i: {})").replace(
    "lr=0.1", "lr=args.lr"
)
ENDED = "import transformers\nt.pad_token = {}\ntext = row + t.eos_token\n"
ENDED += "c = transformers.DataCollatorForLanguageModeling(t, mlm=False)\n"
KEPT_BEST = LOOP + "    if loss < best:\n        best, best_state = loss, {}\ntorch.save(best_state, 'best.pt')\n"
TRAINER = "from transformers import Trainer, TrainingArguments\n"
TRAINER += "a = TrainingArguments('o')\ndata.set_transform(f)\n{}(args=a)\n"

PAIRS: list[tuple[str, str, str, str]] = [
    (P, "eval-mode-kept", MODULE + LOOP + "    policy.eval()\n", MODULE + LOOP + "    ref_policy.eval()\n"),
    (
        P,
        "eval-mode-kept",
        MODULE + change(LOOP, "    for i,", "    model.eval()\n    for i,"),
        MODULE
        + change(
            LOOP,
            "    for i,",
            "    if phase == 'train':\n        model.train()\n    else:\n        model.eval()\n    for i,",
        ),
    ),
    (P, "kept-graph", LOSSES + "        total += loss\n", LOSSES + "        total += parts\n"),
    (P, "kept-graph", LOOP + "        kept.append(model(x))\n", LOOP + "        kept.append(loss)\n"),
    (
        P,
        "kept-graph",
        LOOP + "        total += loss\n",
        "from lib import calc_loss\n"
        + change(LOOP, "criterion = ", "other = ")
        + "        total += calc_loss(model(x), y)\n",
    ),
    (
        P,
        "repeated-forward",
        change(
            LOOP,
            "loss = criterion(model(x), y)",
            "a = model(x)\n        b = model(x)\n        loss = criterion(a + b, y)",
        ),
        change(
            LOOP,
            "loss = criterion(model(x), y)",
            "a = model(x)\n        x = x.flip(0)\n        b = model(x)\n        loss = criterion(a + b, y)",
        ),
    ),
    (
        P,
        "built-in-loop",
        change(LOOP, "    for i,", "    torch.manual_seed(0)\n    for i,"),
        change(LOOP, "    for i,", "    model.reset_parameters()\n    torch.manual_seed(0)\n    for i,"),
    ),
    (P, "kept-graph", LOOP + "        kept[i] = loss\n", LOOP + "        kept['loss'] = loss\n"),
    (
        P,
        "kept-graph",
        LOOP + "        total += loss\n",
        change(LOOP, "enumerate(loader)", "enumerate(micro_batches)") + "        total += loss\n",
    ),
    (
        P,
        "kept-graph",
        LOOP + "        total += loss\n",
        change(LOOP, "        optimizer.step()\n        optimizer.zero_grad()\n", "        total += loss\n"),
    ),
    (
        P,
        "built-in-loop",
        change(LOOP, "    for i,", "    torch.manual_seed(seed)\n    for i,"),
        change(LOOP, "    for i,", "    torch.manual_seed(seed)\n    for i,").replace("for epoch", "for seed"),
    ),
    (
        P,
        "clipped-scaled-gradients",
        CLIPPED,
        change(CLIPPED, "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "optimizer.clip_grad_norm(1.0)"),
    ),
    (
        P,
        "swallowed-errors",
        CAUGHT.format("            print(e)\n"),
        CAUGHT.format("            if 'memory' not in str(e):\n                raise\n            print(e)\n"),
    ),
    (P, "uneven-collective", SKIPPED.format("loss"), SKIPPED.format("reduce_tensor(loss)")),
    (
        P,
        "uneven-collective",
        STARTED + "if rank == 0:\n    dist.barrier()\n",
        STARTED + "if rank != -1:\n    dist.barrier()\n",
    ),
    (
        P,
        "uneven-collective",
        STARTED + "def train():\n    if rank == 0:\n        dist.broadcast(x, 0)\n",
        STARTED
        + "def train():\n    def closure():\n        if rank == 0:\n            dist.broadcast(x, 0)\n"
        + "    if rank == 0:\n        closure()\n    else:\n        dist.broadcast(x, 0)\n",
    ),
    (P, "unreduced-metric", KEEPS_BEST, SHARED),
    (P, "unreduced-metric", KEEPS_BEST, change(SHARED, "right = model(x).argmax(1) == y", "torch.save(model(x), y)")),
    (P, "unreduced-metric", STOPPED.format("patience"), STOPPED.format("patience") + "dist.all_reduce(total)\n"),
    (P, "unregistered-module", LAYERS.format("nn.Linear(2, 2)"), LAYERS.format("nn.ReLU()")),
    (
        P,
        "unregistered-module",
        change(LAYERS, "class Net", HEAD.format("LSTM(2, 2)")).format("Pool()"),
        change(LAYERS, "class Net", HEAD.format("AvgPool1d(2)")).format("Pool()"),
    ),
    (P, "statement-without-effect", LOOP + "x = y\nx.detach()\n", LOOP + "x = y\nx.detach(token)\n"),
    (P, "statement-without-effect", LOOP + "x = y\nx.detach()\n", LOOP + "x = Memory()\nx.detach()\n"),
    (
        P,
        "built-in-loop",
        change(LOOP, "    for i,", "    torch.manual_seed(0)\n    for i,"),
        change(LOOP, "    for i,", "    with torch.no_grad():\n        torch.manual_seed(0)\n    for i,"),
    ),
    (
        P,
        "leaked-split",
        LOOP + "val_loader = DataLoader(train_data)\n",
        LOOP + "val_loader = DataLoader(train_data, sampler=rest)\n",
    ),
    (
        P,
        "wrapper-prefix",
        change(PREFIXED, "{}", "model"),
        change(PREFIXED, "{}", "(model.module if hasattr(model, 'module') else model)"),
    ),
    (
        P,
        "wrapper-prefix",
        change(PREFIXED, "{}", "model"),
        change(PREFIXED, "{}", "model").replace(
            "    model = torch.nn.Linear(2, 2)\n", "    model = torch.nn.Bilinear(2)\n"
        ),
    ),
    (
        P,
        "wrong-best",
        "import torch\nbest_acc = float('inf')\nif acc > best_acc:\n    best_acc = acc\n",
        "import torch\nbest_acc = float('-inf')\nif acc > best_acc:\n    best_acc = acc\n",
    ),
    (P, "wrong-best", KEPT_BEST.format("model.state_dict()"), KEPT_BEST.format("deepcopy(model.state_dict())")),
    (
        P,
        "slow-dataset",
        STREAM.format("open('rows')"),
        STREAM.format("self").replace("yield from self", "while True:\n            yield random.choice(self.data)"),
    ),
    (P, "slow-dataset", STREAM.format("open('rows')"), STREAM.format("(row for row in self.dataset)")),
    (P, "slow-dataset", HELD.format("h5py.File(path)"), HELD.format("None")),
    (
        P,
        "slow-dataset",
        HELD.format("h5py.File(path)"),
        change(HELD.format("h5py.File(path)"), "num_workers=4", "num_workers=0"),
    ),
    (
        P,
        "loader-order",
        change(LOOP, "shuffle=True, ", ""),
        change(LOOP, "DataLoader(data, shuffle=True, ", "PairDataLoader(data, "),
    ),
    (
        P,
        "loader-order",
        change(LOOP, "shuffle=True, ", ""),
        change(LOOP, "shuffle=True, ", "").replace("loader =", "data = torch.randn(9, 2)\nloader ="),
    ),
    (
        P,
        "dropout-always-on",
        change(MODULE, "self.drop(x)", "nn.functional.dropout(x, 0.1)"),
        change(MODULE, "return self.drop(x)", "if self.training:\n            return nn.functional.dropout(x, 0.1)"),
    ),
    (P, "conflicting-arguments", TRAINER.format("Trainer"), TRAINER.format("print")),
    (
        P,
        "forced-wait-each-step",
        LOOP + "        torch.cuda.empty_cache()\n",
        change(LOOP, "criterion(model(x)", "criterion(policy.generate(x)") + "        torch.cuda.empty_cache()\n",
    ),
    (P, "accumulation-without-no-sync", WRAPPED, WRAPPED + "other = FullyShardedDataParallel(model)\n"),
    (P, "gradients-in-validation", VALIDATED, VALIDATED + "def force(e, x):\n    return torch.autograd.grad(e, x)\n"),
    (P, "misused-scheduler", RATED.format("args.lr * 0.9**i"), RATED.format("args.low / args.lr * 0.9**i")),
    (P, "unmasked-labels", ENDED.format("t.eos_token"), ENDED.format("'[pad]'")),
    (
        "accelerate",
        "accelerate-settings",
        change(ACCELERATE, "node-0", "localhost"),
        change(ACCELERATE, "node-0", "null"),
    ),
    (
        "accelerate",
        "accelerate-settings",
        "distributed_type: 'NO'\nnum_processes: 8\n",
        "# on a single GPU\ndistributed_type: 'NO'\nnum_processes: 8\n",
    ),
    (
        "lightning",
        "lightning-settings",
        change(LIGHTNING, "max_epochs: 10", "max_epochs: 10\n  enable_checkpointing: false"),
        change(LIGHTNING, "max_epochs: 10", "max_epochs: 10\n  enable_checkpointing: false  # exp_manager saves"),
    ),
    (
        "lightning",
        "lightning-settings",
        change(LIGHTNING, "max_epochs: 10", SCORED.format("max")),
        change(LIGHTNING, "max_epochs: 10", SCORED.format("min")),
    ),
    (
        "deepspeed",
        "deepspeed-settings",
        change(DEEPSPEED, '"bf16"', '"scheduler": {"params": {"warmup_num_steps": 9, "total_num_steps": 4}}, "bf16"'),
        change(DEEPSPEED, '"bf16"', '"scheduler": {"params": {"warmup_num_steps": 4, "total_num_steps": 9}}, "bf16"'),
    ),
    (
        "deepspeed",
        "deepspeed-settings",
        change(DEEPSPEED, '"stage": 2', '"stage": 3, "stage3_gather_16bit_weights_on_model_save": false'),
        change(DEEPSPEED, '"stage": 2', '"stage": 3, "stage3_gather_16bit_weights_on_model_save": true'),
    ),
]
