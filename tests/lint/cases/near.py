"""Pairs of texts that differ in what makes a finding serious: the first has one of at least medium, the second none."""

from __future__ import annotations

from .settings import ACCELERATE, DEEPSPEED, LIGHTNING
from .texts import (
    ACCUMULATED,
    CLIPPED,
    DATASET,
    GAN,
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

SAMPLED_FROM = "for x in noise:\n    model.eval()\n    model(x).sum().backward()\n"
MOVED = "import torch\nmodel = torch.nn.Linear(2, 2)\nnet = torch.nn.parallel.DistributedDataParallel(\n"
MOVED += "    {}, device_ids=[0]\n)\n{}\n"
HEADED = "import timm, torch\nfrom timm.optim import param_groups_weight_decay\nnew = timm.create_model('a')\n{1}\n"
HEADED += "optimizer = torch.optim.AdamW(param_groups_weight_decay(new))\n{0}\n"
LEAF = change(
    LOOP,
    "loss = criterion(model(x), y)",
    "with torch.no_grad():\n            out = model(x)\n        loss = (scale * out).mean()",
).replace("model = nn", "scale = torch.tensor(1.0{})\nmodel = nn")
UPDATES = """
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters())
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max_steps)
def update(x):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
def schedule():
    scheduler.step()
for epoch in range(9):
    for x in rows:
        update(x)
"""
PREPARED = """
import accelerate, torch
from torch.utils.data import DataLoader
class Trainer:
    def __init__(self, model, data):
        self.accelerator = accelerate.Accelerator()
        optimizer, loader = torch.optim.SGD(model.parameters()), DataLoader(data)
        self.accelerator.prepare({})
        self.run(model, optimizer, loader)
    def run(self, model, optimizer, loader):
        model = self.accelerator.prepare(model)
        for x in loader:
            self.accelerator.backward(model(x).sum())
            optimizer.step()
"""
BETTER = "import torch\n{1} = math.inf\nif {0} < {1}:\n    {1} = {0}\n"
NETWORK = "net = nn.Sequential(nn.Linear(2, 2))\ndef move(part):\n    part.to('cuda')\nmove(net)\n"
DROPPING = """
import torch.nn.functional as F
from torch import nn
class {1}(nn.Module):
    def __init__(self, rate={0}):
        self.rate = rate
    def forward(self, x):
        return F.dropout(x, p=self.rate)
"""
FED = change(LOOP, "DataLoader(data, shuffle=True, num_workers=2,", "DataLoader({}, shuffle=True,")
MNIST = "torchvision.datasets.MNIST({}, download=True)\n"
SAVED_EACH = RANKED + "    torch.save(model, 'a.pt')\n"
JUDGED = change(GAN, "D(fake).mean() - D(x).mean()", "score(D({})) - score(D(x))")
JUDGED = change(JUDGED, "-D(fake).mean()", "-score(D(fake))")
JUDGED += "def score(out):\n    return out.mean()\n"
SCORES = LOOP + "        score()\ndef score():\n    rows = DataLoader(data)\n    return {}\n"
JUDGES = "from lib import Trial\n" + LOOP.replace("nn.Linear(2, 2)", "nn.Sequential(nn.Dropout(0.1))")
JUDGES += "class Judge{}:\n    def score(self):\n        with torch.no_grad():\n            for x in loader:\n"
JUDGES += "                model(x)\n"

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
    (P, "accumulation-without-no-sync", "accum_steps = 8\n" + WRAPPED, WRAPPED),
    (
        P,
        "accumulation-without-no-sync",
        "accum_steps = 8\n" + WRAPPED,
        "accum_steps = 8\n" + WRAPPED + "other = FullyShardedDataParallel(model)\n",
    ),
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
    (P, "eval-mode-kept", MODULE + LOOP + "    model.eval()\n", MODULE + LOOP + SAMPLED_FROM),
    (P, "bypassed-ddp", MOVED.format("model", "model.cuda()"), MOVED.format("model.to(0)", "")),
    (P, "bypassed-ddp", RANKED + "net = model.cuda()\nmp.spawn(run)\n", RANKED + "net = model.cuda()\n"),
    (
        P,
        "bypassed-ddp",
        change(RANKED, "criterion(model(x), y)", "model.module.rollout(x)"),
        change(RANKED, "criterion(model(x), y)", "criterion(model(x), y) + model.module.penalty(x)"),
    ),
    (P, "stale-optimizer", HEADED.format("new.reset_classifier(5)", ""), HEADED.format("", "new.reset_classifier(5)")),
    (P, "unmet-requirement", LOOP + "blank = 27\nc = nn.CTCLoss()\n", LOOP + "blank = d.blank\nc = nn.CTCLoss()\n"),
    (P, "repeated-forward", TWICE.format(""), LOOP + 2 * "        accelerator.unwrap_model(x)\n"),
    (P, "detached-loss", LEAF.format(""), LEAF.format(", requires_grad=True")),
    (P, "misused-scheduler", UPDATES + "    schedule()\n", UPDATES + "        schedule()\n"),
    (P, "half-accelerated", PREPARED.format("optimizer"), PREPARED.format("optimizer, loader")),
    (
        P,
        "slow-dataset",
        DATASET.format(get="pd.read_csv(self.path)"),
        DATASET.format(
            get="self.read(self.rows[i])\n    def read(self, path):\n        return pd.read_csv(self.root / path)"
        ),
    ),
    (
        P,
        "forced-wait-each-step",
        LOOP + "        torch.cuda.synchronize()\n",
        LOOP + "        torch.cuda.synchronize()\n        took = time.perf_counter() - start\n",
    ),
    (
        P,
        "forced-wait-each-step",
        LOOP + "        torch.save(model, 'a.pt')\n",
        LOOP + "        for name in due:\n            torch.save(model, name)\n",
    ),
    (P, "wrong-best", BETTER.format("acc", "best_acc"), BETTER.format("distance", "best_distance_score")),
    (P, "statement-without-effect", LOOP + "        x.to('cuda')\n", LOOP + NETWORK),
    (P, "statement-without-effect", LOOP + "        x.to('cuda')\n", LOOP + "        x.to(torch.float16)\n"),
    (P, "dropout-always-on", DROPPING.format("0.1", "Net"), DROPPING.format("0.0", "Net")),
    (P, "dropout-always-on", DROPPING.format("0.1", "Net"), DROPPING.format("0.1", "Prenet")),
    (P, "workerless-loader", FED.format("datasets.ImageFolder('a')"), FED.format("convert_tokenizer(rows)")),
    (P, "save-on-every-rank", RANKED + MNIST.format("'data'"), RANKED + MNIST.format("f'data{rank}'")),
    (P, "save-on-every-rank", SAVED_EACH, RANKED + "torch.save(model, 'a.pt')\n"),
    (P, "undetached-input", GAN, change(GAN, "loss.backward()", "loss.backward(retain_graph=True)")),
    (
        P,
        "undetached-input",
        JUDGED.format("fake"),
        JUDGED.format("fake.detach()"),
    ),
    (P, "swallowed-errors", CAUGHT.format("            print(e)\n"), CAUGHT.format("            quit()\n")),
    (P, "unreduced-metric", KEEPS_BEST, SHARED + "torch.save(right, 'a.pt')\n"),
    (P, "kept-graph", LOOP + "        kept.append(model(x))\n", LOOP + "        kept.append(loss.mean())\n"),
    (P, "loader-per-step", SCORES.format("next(iter(rows))"), SCORES.format("[model(x) for x in rows]")),
    (P, "validation-in-train-mode", JUDGES.format(""), JUDGES.format("(Trial)")),
    (P, "undivided-accumulation", ACCUMULATED, change(ACCUMULATED, "model(x), y)", "model(x), y) / len(y)")),
    (
        P,
        "misused-scaler",
        change(LOOP, "optimizer.step()", "scaler.step(optimizer)\n        scaler.update()"),
        change(LOOP, "optimizer.step()", "if amp:\n            scaler.step(optimizer)\n            scaler.update()"),
    ),
    (
        "deepspeed",
        "deepspeed-settings",
        change(DEEPSPEED, '"bf16"', '"comms_logger": {"enabled": true}, "bf16"'),
        change(DEEPSPEED, '"bf16"', '"flops_profiler": {"enabled": true}, "bf16"'),
    ),
]
