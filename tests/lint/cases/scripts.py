"""For each rule of training scripts a text in which it finds something, and one near it in which it does not."""

from __future__ import annotations

from .texts import (
    ACCELERATED,
    ACCUMULATED,
    ASYNC,
    CHECKED,
    CLIPPED,
    DATASET,
    DDP,
    EVALUATED,
    GAN,
    GATHERED,
    KEEPER,
    KEPT,
    LIGHTNING,
    LOOP,
    MODULE,
    PADDED,
    PARSED,
    PREFIXED,
    RESUMED,
    SAMPLED,
    SAVED,
    SCALED,
    SCHEDULED,
    SHARED,
    STARTED,
    VALIDATED,
    VALUES,
    WRAP,
    WRAPPED,
    change,
)

CASES: dict[str, tuple[str, str]] = {
    "unhandled-signal": (SAVED, SAVED + "import signal\nsignal.signal(signal.SIGUSR1, save)\n"),
    "missing-zero-grad": (change(LOOP, "        optimizer.zero_grad()\n", ""), LOOP),
    "zeroed-micro-batches": (
        change(ACCUMULATED, "        loss.backward()", "        optimizer.zero_grad()\n        loss.backward()"),
        ACCUMULATED,
    ),
    "uncleared-steps": (
        change(LOOP, "        optimizer.zero_grad()\n", "        if i % 4 == 0:\n            optimizer.zero_grad()\n"),
        ACCUMULATED,
    ),
    "undivided-accumulation": (ACCUMULATED, change(ACCUMULATED, "(model(x), y)", "(model(x), y) / accum_steps")),
    "sampler-without-set-epoch": (
        SAMPLED,
        change(SAMPLED, "    for i,", "    sampler.set_epoch(epoch)\n    for i,"),
    ),
    "save-on-every-rank": (SAVED, change(SAVED, "    torch.save", "    if dist.get_rank() == 0: torch.save")),
    "loader-per-step": (
        change(LOOP, "        loss =", "        z = next(iter(loader))\n        loss ="),
        change(LOOP, "        loss =", "        z = next(stream)\n        loss ="),
    ),
    "workerless-loader": (change(LOOP, "num_workers=2, ", ""), LOOP),
    "item-each-step": (
        LOOP + "        losses.append(loss.item())\n",
        LOOP + "        if i % 10 == 0: losses.append(loss.item())\n",
    ),
    "print-each-step": (LOOP + "        print(i)\n", LOOP + "    print(epoch)\n"),
    "kept-graph": (KEPT, change(KEPT, "+= loss", "+= loss.detach()")),
    "forced-wait-each-step": (LOOP + "        torch.cuda.empty_cache()\n", LOOP + "    torch.cuda.empty_cache()\n"),
    "accumulation-without-no-sync": (WRAPPED, WRAPPED + "# with model.no_sync()\n"),
    "useless-non-blocking": (change(ASYNC, ", pin_memory=True", ""), ASYNC),
    "uncatchable-signal": (
        "import signal\nsignal.signal(signal.SIGKILL, save)\n",
        "import signal\nsignal.signal(signal.SIGTERM, save)\n",
    ),
    "unused-parameter-search": (LOOP + DDP.format(True), LOOP + DDP.format(False)),
    "gradients-in-validation": (VALIDATED, change(VALIDATED, "def v", "@torch.no_grad()\ndef v")),
    "eval-mode-kept": (EVALUATED, change(EVALUATED, "    for i,", "    model.train()\n    for i,")),
    "clipped-scaled-gradients": (
        CLIPPED,
        change(CLIPPED, "        torch.nn.utils", "        scaler.unscale_(optimizer)\n        torch.nn.utils"),
    ),
    "step-out-of-order": (
        change(
            LOOP,
            "        loss.backward()\n        optimizer.step()\n",
            "        optimizer.step()\n        loss.backward()\n",
        ),
        LOOP,
    ),
    "never-stepped": (change(LOOP, "        optimizer.step()\n", ""), LOOP),
    "misused-scaler": (
        change(SCALED, "        scaler.update()\n", ""),
        SCALED,
    ),
    "detached-loss": (
        change(LOOP, "criterion(model(x), y)", "criterion(model(x).argmax(1).float(), y)"),
        change(LOOP, "criterion(model(x), y)", "criterion(model(x), y.argmax(1))"),
    ),
    "activated-loss": (
        change(LOOP, "criterion(model(x), y)", "criterion(torch.softmax(model(x), -1), y)"),
        change(LOOP, "loss.backward()", "shown = torch.softmax(model(x), -1)\n        loss.backward()"),
    ),
    "stale-optimizer": (
        change(LOOP, "loader =", "model.head = nn.Linear(2, 3)\nloader ="),
        change(LOOP, "optimizer =", "model.head = nn.Linear(2, 3)\noptimizer ="),
    ),
    "carried-state": (
        change(LOOP, "loss = criterion(model(x), y)", "out, h = model(x, h)\n        loss = criterion(out, y)"),
        change(
            LOOP,
            "loss = criterion(model(x), y)",
            "h = h.detach()\n        out, h = model(x, h)\n        loss = criterion(out, y)",
        ),
    ),
    "validation-in-train-mode": (
        MODULE + LOOP.replace("nn.Linear(2, 2)", "Net()") + CHECKED,
        MODULE + LOOP.replace("nn.Linear(2, 2)", "Net()") + change(CHECKED, "    for", "    model.eval()\n    for"),
    ),
    "swallowed-errors": (
        change(
            LOOP,
            "        loss.backward()\n",
            "        try:\n            loss.backward()\n        except Exception:\n            continue\n",
        ),
        change(
            LOOP,
            "        loss.backward()\n",
            "        try:\n            loss.backward()\n        except Exception:\n            raise\n",
        ),
    ),
    "misused-scheduler": (
        change(SCHEDULED, "    scheduler.step()", "        scheduler.step()"),
        SCHEDULED,
    ),
    "built-in-loop": (
        change(LOOP, "    for i,", "    torch.manual_seed(0)\n    for i,"),
        change(LOOP, "    for i,", "    torch.manual_seed(epoch)\n    for i,"),
    ),
    "debug-switch": (
        LOOP + "torch.autograd.set_detect_anomaly(True)\n",
        LOOP + "if debug:\n    torch.autograd.set_detect_anomaly(True)\n",
    ),
    "repeated-forward": (
        change(LOOP, "        loss.backward()", "        right = model(x).argmax(1)\n        loss.backward()"),
        change(LOOP, "        loss.backward()", "        right = model(z).argmax(1)\n        loss.backward()"),
    ),
    "loader-order": (change(LOOP, "shuffle=True, ", ""), LOOP),
    "slow-dataset": (
        DATASET.format(get="pd.read_csv(self.path).iloc[i]"),
        DATASET.format(get="pd.read_csv(self.paths[i])"),
    ),
    "leaked-split": (
        "import torch\nscaler.fit(x)\na, b = train_test_split(x)\n",
        "import torch\na, b = train_test_split(x)\nscaler.fit(a)\n",
    ),
    "uneven-collective": (
        STARTED + "if dist.get_rank() == 0:\n    save()\n    dist.barrier()\n",
        STARTED + "if dist.get_rank() == 0:\n    save()\ndist.barrier()\n",
    ),
    "bypassed-ddp": (
        change(LOOP, "loss = criterion(model(x)", "loss = criterion(model.module(x)").replace("criterion = ", WRAP, 1),
        LOOP.replace("criterion = ", WRAP, 1),
    ),
    "unreduced-metric": (SHARED, SHARED + "torch.distributed.all_reduce(right)\n"),
    "wrapper-prefix": (change(PREFIXED, "{}", "model"), change(PREFIXED, "{}", "model.module")),
    "incomplete-checkpoint": (
        RESUMED,
        RESUMED + "optimizer.load_state_dict(c['o'])\ntorch.save(optimizer.state_dict(), 'o')\n",
    ),
    "wrong-best": (
        "import torch\nif accuracy < best_accuracy:\n    best_accuracy = accuracy\n",
        "import torch\nif loss < best_loss:\n    best_loss = loss\n",
    ),
    "unregistered-module": (
        change(MODULE, "self.drop = ", "self.rows = [nn.Linear(2, 2) for _ in range(3)]\n        self.drop = "),
        change(
            MODULE,
            "self.drop = ",
            "self.rows = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])\n        self.drop = ",
        ),
    ),
    "dropout-always-on": (
        change(MODULE, "self.drop(x)", "nn.functional.dropout(x, 0.1)"),
        change(MODULE, "self.drop(x)", "nn.functional.dropout(x, 0.1, training=self.training)"),
    ),
    "statement-without-effect": (change(LOOP, "zero_grad()", "zero_grad"), LOOP),
    "unused-argument": (PARSED + LOOP, PARSED + LOOP + "print(args.lr)\n"),
    "half-accelerated": (ACCELERATED, change(ACCELERATED, "loss.backward()", "accelerator.backward(loss)")),
    "lightning-by-hand": (LIGHTNING, change(LIGHTNING, "loss.backward()", "return loss")),
    "conflicting-arguments": (
        "from transformers import TrainingArguments\nTrainingArguments('o', fp16=True, bf16=True)\n",
        "from transformers import TrainingArguments\nTrainingArguments('o', bf16=True)\n",
    ),
    "clip-after-step": (
        LOOP + "        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
        change(LOOP, "        optimizer.step()", "        nn.utils.clip_grad_norm_(p, 1.0)\n        optimizer.step()"),
    ),
    "mismatched-loss": (change(VALUES, ".squeeze(1)", ""), VALUES),
    "aliased-model": (change(VALUES, "copy.deepcopy(q)", "q"), VALUES),
    "undetached-input": (GAN, change(GAN, "loss = D(fake)", "loss = D(fake.detach())")),
    "unmasked-labels": (
        PADDED,
        change(PADDED, "    return", '    batch["labels"][batch["attention_mask"] == 0] = -100\n    return'),
    ),
    "misused-callbacks": (KEEPER, KEEPER + "        self.outs.clear()\n"),
    "gathered-without-gradient": (
        GATHERED,
        change(GATHERED, "        loss", "        parts[rank] = out\n        loss"),
    ),
}
