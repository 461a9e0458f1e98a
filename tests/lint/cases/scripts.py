"""For each rule of training scripts a text in which it finds something, and one near it in which it does not."""

from __future__ import annotations

from .texts import ACCUMULATED, ASYNC, CLIPPED, DDP, EVALUATED, KEPT, LOOP, SAMPLED, SAVED, VALIDATED, WRAPPED, change

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
    "clip-after-step": (
        LOOP + "        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
        change(LOOP, "        optimizer.step()", "        nn.utils.clip_grad_norm_(p, 1.0)\n        optimizer.step()"),
    ),
}
