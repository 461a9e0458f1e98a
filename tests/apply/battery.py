"""Techniques -> for each, on small trainings of every kind, whether its numbers are what its numerics class promises.

Every training is run without and with a technique: changed by API, by hotloop's Trainer and, through the Applier and
the agent's own patches, as from outside. One forked process per technique and number of ranks, so that what a technique
sets for its process reaches no other.

    python tests/apply/battery.py [technique ...]    a few steps of what compiles nothing; JSON on stdout

`make numerics` (benchmarks/numerics.py) judges all of them over 300 steps and several seeds.

Laws (class of the effect, which is the class of the technique unless the effect says better):
exact      every loss, parameter and buffer has equal bits
reordered  over the first REORDERED_STEPS steps each loss within ROUNDING_FACTOR times the rounding error that the
           training itself has by then, and the parameters within PATH_TOLERANCE of the way that they went
resampled, lossy (and reordered beyond those steps)
           in every block of steps the mean over the seeds lies between the lowest and the highest baseline seed
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import random
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # torch imports it on the first step, which every forked child would pay for
import torch.utils.checkpoint
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import DataLoader, Dataset

from hotloop.agent.attach.applying import function_site
from hotloop.agent.attach.sites import install
from hotloop.change.apply import TECHNIQUES
from hotloop.change.apply.api import apply_strategy
from hotloop.change.apply.applier import Applier, make_context
from hotloop.change.apply.environment import set_variables
from hotloop.core.applied import APPLIED, FAILED
from hotloop.core.errors import UsageError
from hotloop.core.strategy import Choice, Strategy
from hotloop.core.techniques import Stage, Technique
from hotloop.train.trainer import Trainer

FAST_STEPS = 3
SEEDS = (1, 2, 3, 4, 5)
TREATED_SEEDS = SEEDS[:3]
REORDERED_STEPS = 20
ROUNDING_FACTOR = 4
"""A loss may differ by so many times the largest error that rounding alone has caused up to this step, over several
seeds: the relative difference between the training in float32 and in float64, on the same ranks.

That error has in it how many terms each sum of this model has, over how many ranks gradients are added, and how
momentum, batch norm and Adam's division have grown it. Another order of summing errs as much, independently: the two
are at most twice as far apart. And the largest of a few seeds is not the largest there is: twice again.
"""
ROUNDING_LEAST = 2.0**-23
"""What the error counts for at least: the last bit of a loss in float32."""
PATH_TOLERANCE = 2e-2
"""Norm of the difference of all parameters over the norm of how far they moved.

Wider than a rounding, because Adam divides by the size of a gradient: where that is nothing but rounding error, its
sign decides on a step of full length.
"""
CLASSES = ("exact", "reordered", "resampled", "lossy")
MOST_S = 280

BATCH, LENGTH, WIDTH, HEADS = 8, 32, 32, 2


# The data: sentences of a small grammar, as characters.


def write_text(count: int = 1500) -> str:
    draw = random.Random(7)
    who = ("the rank", "a worker", "this loader", "one kernel", "her model", "the step")
    does = ("waits for", "feeds", "starts", "follows", "repeats", "reads")
    what = ("the next batch", "a slow disk", "old gradients", "two blocks", "every loss", "the network")
    return ". ".join(f"{draw.choice(who)} {draw.choice(does)} {draw.choice(what)}" for _ in range(count))


class Windows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Characters and the characters that follow them; ``shift_count`` moves a window by a random draw."""

    def __init__(self, shift_count: int = 0) -> None:
        text = write_text()
        known = {letter: index for index, letter in enumerate(sorted(set(text)))}
        self.vocabulary = len(known)
        self.codes = torch.tensor([known[letter] for letter in text])
        self.shift_count = shift_count

    def __len__(self) -> int:
        return (len(self.codes) - LENGTH - 1 - self.shift_count) // 16

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * 16
        if self.shift_count:
            start += int(torch.randint(self.shift_count, ()))
        return self.codes[start : start + LENGTH], self.codes[start + 1 : start + LENGTH + 1]


class CostlyWindows(Windows):
    """A few windows, read many times, each after work that costs more than a copy of it."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        sum(number * number for number in range(5_000))
        return super().__getitem__(index * 40)


class SentencesOfAnyLength(Windows):
    """Windows of several lengths; batches are padded to their longest, and the loss leaves the padding out."""

    def __init__(self) -> None:
        super().__init__()
        draw = random.Random(11)
        self.lengths = [draw.randint(LENGTH // 4, LENGTH) for _ in range(len(self))]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = super().__getitem__(index)
        return x[: self.lengths[index]], y[: self.lengths[index]]

    def collate(self, samples: Any) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = (list(one) for one in zip(*samples, strict=True))
        pad = nn.utils.rnn.pad_sequence
        return pad(x, batch_first=True), pad(y, batch_first=True, padding_value=-100)


class Images(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Noise around one of ten patterns, and which one."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(3)
        self.patterns = torch.randn(10, 3, 12, 12, generator=draw)
        self.noise = torch.randn(400, 3, 12, 12, generator=draw)

    def __len__(self) -> int:
        return len(self.noise)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.patterns[index % 10] * 0.3 + self.noise[index], torch.tensor(index % 10)


# The models.


class Block(nn.Module):
    def __init__(self, recompute: bool = False, by_hand: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.recompute = recompute
        self.by_hand = by_hand

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        if self.recompute and self.training:
            from torch.utils.checkpoint import checkpoint

            changed = checkpoint(self.compute, x_BLD, use_reentrant=False)
            assert isinstance(changed, torch.Tensor)
            return changed
        return self.compute(x_BLD)

    def compute(self, x_BLD: torch.Tensor) -> torch.Tensor:
        batch, length, width = x_BLD.shape
        parts = self.qkv(self.norm1(x_BLD)).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        if self.by_hand:
            scores = parts[0] @ parts[1].transpose(-2, -1) / math.sqrt(width // HEADS)
            mask = torch.ones(length, length, dtype=torch.bool, device=x_BLD.device).triu(1)
            mixed = scores.masked_fill(mask, -math.inf).softmax(-1) @ parts[2]
        else:
            mixed = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x_BLD = x_BLD + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        changed: torch.Tensor = x_BLD + self.mlp(self.norm2(x_BLD))
        return changed


class LanguageModel(nn.Module):
    def __init__(self, vocabulary: int, **options: Any) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(**options) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)

    def forward(self, codes_BL: torch.Tensor) -> torch.Tensor:
        x_BLD = self.tokens(codes_BL) + self.places(torch.arange(codes_BL.shape[1], device=codes_BL.device))
        for block in self.blocks:
            x_BLD = block(x_BLD)
        logits_BLV: torch.Tensor = self.head(self.norm(x_BLD))
        return logits_BLV


class Mixer(nn.Module):
    """Characters' vectors, mixed over places and over features. No forward has a branch, and sums are long."""

    def __init__(self, vocabulary: int, width: int = WIDTH) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.over_places = nn.Sequential(nn.LayerNorm(LENGTH), nn.Linear(LENGTH, LENGTH), nn.GELU())
        self.over_features = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU())
        self.head = nn.Linear(4 * width, vocabulary)

    def forward(self, codes_BL: torch.Tensor) -> torch.Tensor:
        x_BLD = self.tokens(codes_BL)
        x_BLD = x_BLD + self.over_places(x_BLD.transpose(1, 2)).transpose(1, 2)
        logits_BLV: torch.Tensor = self.head(self.over_features(x_BLD))
        return logits_BLV


def mixer(width: int = WIDTH) -> Callable[[Any], nn.Module]:
    return lambda data: Mixer(data.vocabulary, width)


def image_model(_: Any) -> nn.Module:
    """Smooth, without ReLU: an input within a rounding of its kink flips, and the loss leaves by far more than that.

    With ReLU, on 2 ranks, one of 24,832 inputs flipped in step 5 of one seed of three under channels_last: its loss
    was 3e-6 away in step 7 and 2e-5 in step 14, and 1e-7 before. With SiLU and GELU it stayed within that.
    """
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.SiLU(),
        nn.Conv2d(8, 16, 3, stride=2, bias=False),
        nn.BatchNorm2d(16),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


# The kinds of training.


@dataclass(frozen=True, kw_only=True)
class Fixture:
    """One kind of training. One that changes what is computed gets a new id: results and baselines are kept by it."""

    id: str
    data: Callable[[], Any]
    model: Callable[[Any], nn.Module]
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda parameters: torch.optim.AdamW(parameters, 3e-3, eps=1e-6)
    ways: tuple[str, ...] = ("outside",)
    only: tuple[str, ...] = ()
    """The techniques that it was made for; the others do not go there. Each that applies is tried at length."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of techniques, where these are others than SETTINGS."""
    ranks: tuple[int, ...] = (1, 2)
    for_ranks: tuple[str, ...] = ()
    """Those of ``only`` that need two ranks."""
    few_steps: int = FAST_STEPS
    """After so many a technique that watches the first steps has decided, and trained another few."""
    ddp: bool = False
    """Wraps the model also on one rank; on two ranks every model is wrapped, if no technique has cut it over them."""
    ddp_options: Mapping[str, Any] = field(default_factory=dict)
    scaler: Mapping[str, Any] | None = None
    fp16: bool = False
    clip: bool = False
    clip_foreach: bool | None = None
    micro_batches: int = 1
    threads: int = 1
    lengths: tuple[int, ...] = ()
    """Sequences are cut to these in turn."""
    is_compiled: bool = False
    given: str = "wrapped"
    """How the API gets the model: ``wrapped``, ``bare`` (and wrapped afterwards), or ``first``, before the optimizer is
    built."""
    train: Callable[..., Run] = lambda *arguments: train(*arguments)


def language_model(**options: Any) -> Callable[[Any], nn.Module]:
    return lambda data: LanguageModel(data.vocabulary, **options)


TRAINER_ONLY = ("accumulation", "bf16-parameters", "fsdp2", "zero-optimizer")
"""What acts in hotloop's Trainer in a way of its own, or nowhere else."""

KINDS = (
    Fixture(id="language-model", data=Windows, model=language_model(), ways=("outside", "api")),
    Fixture(id="augmented", data=lambda: Windows(8), model=language_model(by_hand=True), micro_batches=2),
    Fixture(
        id="images",
        data=Images,
        model=image_model,
        optimizer=lambda p: torch.optim.SGD(p, 0.05, 0.9),
        ways=("outside", "api"),
    ),
    Fixture(id="ddp", data=Windows, model=language_model(), ddp=True, micro_batches=2, ways=("outside", "api")),
    Fixture(id="scaler", data=Windows, model=language_model(), scaler={}, clip=True),
    Fixture(id="fp16", data=Windows, model=language_model(), scaler={}, fp16=True),
    Fixture(id="recomputed", data=Windows, model=language_model(recompute=True), clip=True),
    # What a technique is there to replace.
    Fixture(
        id="clipped-one-by-one",
        data=Windows,
        model=language_model(),
        clip=True,
        clip_foreach=False,
        only=("foreach-clipping",),
    ),
    Fixture(
        id="too-many-threads",
        data=Windows,
        model=mixer(256),
        threads=4,
        ways=("outside", "api"),
        only=("thread-count",),
    ),
    Fixture(
        id="small-scanned-buckets",
        data=Windows,
        model=mixer(),
        ddp=True,
        ddp_options={"find_unused_parameters": True, "bucket_cap_mb": 0.01},
        only=("ddp-buckets", "ddp-settings"),
        for_ranks=("ddp-buckets",),
        few_steps=6,
    ),
    Fixture(
        id="sent-in-fewer-bits",
        data=Windows,
        model=language_model(),
        ddp=True,
        only=("compress-gradients",),
        for_ranks=("compress-gradients",),
        few_steps=6,
    ),
    Fixture(
        id="static-graph",
        data=Windows,
        model=language_model(),
        ddp=True,
        only=("ddp-settings",),
        settings={"ddp-settings": {"static_graph": True, "gradient_as_bucket_view": True}},
    ),
    Fixture(
        id="exchanged-too-often",
        data=Windows,
        model=language_model(),
        ddp=True,
        micro_batches=3,
        only=("no-sync-accumulation",),
        for_ranks=("no-sync-accumulation",),
        few_steps=8,
    ),
    Fixture(
        id="several-lengths",
        data=Windows,
        model=language_model(),
        lengths=(32, 24, 16),
        is_compiled=True,
        only=("dynamic-shapes",),
    ),
    Fixture(
        id="few-costly-samples",
        data=CostlyWindows,
        model=language_model(),
        ways=("outside", "api"),
        only=("cache-samples",),
        few_steps=9,
    ),
    Fixture(
        id="sentences-of-any-length",
        data=SentencesOfAnyLength,
        model=language_model(),
        ways=("outside", "api"),
        only=("group-by-length",),
    ),
    # Where a technique acts only if it comes first, or only in the Trainer.
    Fixture(
        id="before-the-optimizer",
        data=Windows,
        model=language_model(),
        given="first",
        ways=("api",),
        only=("fsdp2",),
        for_ranks=("fsdp2",),
        ranks=(2,),
    ),
    Fixture(
        id="before-wrapping",
        data=Windows,
        model=language_model(),
        given="bare",
        ways=("api",),
        only=("bf16-parameters",),
        for_ranks=("bf16-parameters",),
        ranks=(2,),
    ),
    Fixture(
        id="trainer",
        data=Windows,
        model=language_model(),
        train=lambda *arguments: train_with_trainer(*arguments),
        ways=("trainer",),
        only=TRAINER_ONLY,
        for_ranks=("fsdp2", "zero-optimizer"),
    ),
)
FIXTURES: Mapping[str, Fixture] = {one.id: one for one in KINDS}


def places_of(technique: Technique, world_size: int) -> list[tuple[str, str]]:
    """(kind, way) of all trainings that a technique is tried on; what compiles for seconds each time, on fewer."""
    found = []
    for one in FIXTURES.values():
        usual = not one.only and (not compiles(technique) or one.id in ("language-model", "images", "ddp"))
        if world_size in one.ranks and (usual or technique.id in one.only):
            found += [(one.id, way) for way in one.ways if usual or technique.id in one.only]
    return sorted(found, key=lambda place: place[1] == "api")


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one training did. ``state`` holds the bytes of all parameters and buffers, in order."""

    losses: tuple[float, ...]
    start: tuple[torch.Tensor, ...]
    state: tuple[torch.Tensor, ...]
    records: tuple[tuple[str, str, str | None], ...] = ()
    """status, detail, numerics"""
    rounding_ratios: tuple[float, ...] = ()
    """Of a training without techniques: the largest relative rounding error of a loss up to each step, over seeds."""


@dataclass(frozen=True, kw_only=True)
class Hand:
    """Where a training offers its objects, in the order in which an unmodified script would be met.

    Without a technique every function gives back what it got.
    """

    loader: Callable[[Any], Any] = lambda loader: loader
    ddp: Callable[[dict[str, Any]], None] = lambda arguments: None
    optimizer: Callable[[Any], None] = lambda optimizer: None
    scaler: Callable[[Any], None] = lambda scaler: None
    objects: Callable[[Any, Any, Any, Any], tuple[Any, Any, Any, Any]] = lambda m, o, lo, s: (m, o, lo, s)
    model: Callable[[Any], Any] = lambda model: model
    backward: Callable[[], None] = lambda: None
    step: Callable[[], None] = lambda: None
    end: Callable[[], list[Any]] = list
    undo: Callable[[], None] = lambda: None
    strategy: Strategy | None = None
    """For a loop that applies it itself."""


def train(fixture: Fixture, hand: Hand, steps: int, seed: int, dtype: torch.dtype = torch.float32) -> Run:
    """One training on this rank, from its seed. In float64 it starts from the same float32 numbers."""
    random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(fixture.threads)
    distributed = torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
    data = fixture.data()
    sampler = None
    if distributed:
        sampler = torch.utils.data.DistributedSampler(data, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    loader: Any = DataLoader(
        data,
        batch_size=BATCH,
        shuffle=sampler is None,
        sampler=sampler,
        generator=draw,
        drop_last=True,
        collate_fn=getattr(data, "collate", None),
    )
    loader = hand.loader(loader)
    model: Any = fixture.model(data).to(dtype)
    bare = model
    start = snapshot(bare)

    def wrap(model: Any) -> Any:
        if not (distributed or fixture.ddp) or isinstance(model, FSDPModule):
            return model
        arguments: dict[str, Any] = {"module": model, **fixture.ddp_options}
        hand.ddp(arguments)
        return nn.parallel.DistributedDataParallel(**arguments)

    if fixture.given == "first":
        model, _, loader, _ = hand.objects(model, None, loader, None)
    if fixture.given != "bare":
        model = wrap(model)
    optimizer: Any = fixture.optimizer(model.parameters())
    hand.optimizer(optimizer)
    scaler: Any = None
    if fixture.scaler is not None:
        scaler = torch.amp.GradScaler("cpu", **{"init_scale": 1024.0, **fixture.scaler})
        hand.scaler(scaler)
    if fixture.given != "first":
        model, optimizer, loader, scaler = hand.objects(model, optimizer, loader, scaler)
    if fixture.given == "bare":
        model = wrap(model)
    if fixture.is_compiled and dtype is torch.float32:
        torch._dynamo.reset()
        compile_function: Any = torch.compile
        model = compile_function(model, dynamic=False)

    def batches() -> Iterator[Any]:
        epoch = 0
        while True:
            if sampler is not None:
                sampler.set_epoch(epoch)
            yield from loader
            epoch += 1

    losses = []
    feed = batches()
    for step in range(steps):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(fixture.micro_batches):
            x, y = next(feed)
            x = x.to(dtype) if x.is_floating_point() else x
            if fixture.lengths:
                length = fixture.lengths[step % len(fixture.lengths)]
                x, y = x[:, :length].contiguous(), y[:, :length]
            model = hand.model(model)
            with torch.autocast("cpu", torch.float16) if fixture.fp16 else contextlib.nullcontext():
                out = model(x)
            loss = loss_of(out, y, dtype) / fixture.micro_batches
            hand.backward()
            (loss if scaler is None else scaler.scale(loss)).backward()
            total += loss.detach().item()
        if fixture.clip:
            if scaler is not None:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=fixture.clip_foreach)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        hand.step()
        losses.append(total)
    records = hand.end()
    state = snapshot(model)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if records and len(getattr(optimizer, "param_groups", ())) and not held & {id(p) for p in model.parameters()}:
        raise AssertionError("the optimizer holds parameters that the model no longer has")
    feed.close()
    hand.undo()
    torch.set_num_threads(1)
    return Run(losses=tuple(losses), start=start, state=state, records=tuple(records))


def loss_of(logits: Any, targets: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.to(dtype).flatten(0, -2), targets.flatten())


def train_with_trainer(fixture: Fixture, hand: Hand, steps: int, seed: int, dtype: torch.dtype = torch.float32) -> Run:
    """The same kind of training by hotloop's Trainer, with the hand's strategy."""
    random.seed(seed)
    torch.manual_seed(seed)
    data = fixture.data()
    loader: Any = DataLoader(data, batch_size=BATCH, shuffle=True, drop_last=True)
    bare = fixture.model(data).to(dtype)
    start = snapshot(bare)
    losses: list[float] = []

    class Notes:
        def on_step_end(self, trainer: Any, loss: Any) -> None:
            losses.append(loss.item())

    def compute(model: Any, batch: Any) -> torch.Tensor:
        return loss_of(model(batch[0]), batch[1], dtype)

    strategy = hand.strategy or Strategy(choices=())
    trainer = Trainer(bare, fixture.optimizer, compute, strategy=strategy, callbacks=[Notes()], seed=seed)
    result = trainer.fit(loader, epochs=steps, max_steps=steps)
    records = told(result.records)
    if trainer.split > 1:  # the Trainer's own technique: its records are of objects, and this changes none
        records = [(APPLIED, f"each batch in {trainer.split} parts", "reordered")]
    return Run(losses=tuple(losses), start=start, state=snapshot(trainer.model), records=tuple(records))


def snapshot(model: Any) -> tuple[torch.Tensor, ...]:
    """Copies of parameters and buffers, whole where they are sharded."""
    with torch.no_grad():
        found = [*model.parameters(), *model.buffers()]
        whole = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in found]
        return tuple(one.detach().clone(memory_format=torch.contiguous_format) for one in whole)


# The two ways in.

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "ddp-settings": {"watch_steps": 2},
    "thread-count": {"torch_threads": 1},
}
"""Of techniques that have to be told what to do, or that would watch for longer than a short training takes."""

CALLS: dict[str, Applier | None] = {"applier": None}
"""Who changes the calls of torch's functions that are patched in this process."""


def strategy_of(technique: Technique, fixture: Fixture | None = None) -> Strategy:
    settings = SETTINGS.get(technique.id, {})
    if fixture is not None:
        settings = fixture.settings.get(technique.id, settings)
    # Fixtures set by hand what a technique is to replace.
    return Strategy(choices=(Choice(technique=technique.id, settings=settings, override=True),))


def with_technique(technique: Technique, fixture: Fixture, way: str, techniques: Mapping[str, Technique]) -> Hand:
    strategy = strategy_of(technique, fixture)
    CALLS["applier"] = None  # of a training that ended early
    if way == "outside":
        return from_outside(strategy, techniques)
    return by_api(strategy) if way == "api" else Hand(strategy=strategy)


def patch_calls(names: Sequence[str]) -> None:
    """The functions that a technique changes, where the agent patches them."""
    for name in names:

        def wrap(original: Any, name: str = name) -> Any:
            def changed(*args: Any, **kwargs: Any) -> Any:
                applier = CALLS["applier"]
                if applier is None or torch.compiler.is_compiling():
                    return original(*args, **kwargs)
                call = applier.change_call(name, original, args, kwargs, sys._getframe(1))
                return call.function(*call.args, **call.kwargs)

            return changed

        site = function_site(name)
        if not site.module.startswith("torch") and site.module not in sys.modules:
            continue  # a library is patched when it is imported, and none of these trainings imports it
        problem = install(site, [wrap])
        if problem is not None:
            raise RuntimeError(problem)


def from_outside(strategy: Strategy, techniques: Mapping[str, Technique]) -> Hand:
    applier = Applier(strategy, techniques, make_context(strategy, from_outside=True))
    applier.start()
    CALLS["applier"] = applier

    def end() -> list[Any]:
        CALLS["applier"] = None
        applier.finish()
        return told(applier.records)

    return Hand(
        loader=applier.loader_built,
        ddp=applier.ddp_arguments,
        optimizer=applier.optimizer_built,
        scaler=applier.scaler_built,
        model=applier.model_met,
        backward=applier.optimizers_first_used,
        step=applier.after_step,
        end=end,
        undo=applier.undo,
    )


def by_api(strategy: Strategy) -> Hand:
    made: list[Any] = []

    def objects(model: Any, optimizer: Any, loader: Any, scaler: Any) -> tuple[Any, Any, Any, Any]:
        applied = apply_strategy(strategy, model=model, optimizer=optimizer, loader=loader, scaler=scaler)
        made.append(applied)
        return applied.model, applied.optimizer, applied.loader, scaler

    return Hand(
        objects=objects,
        step=lambda: made[0].after_step(),
        end=lambda: told(made[0].applier.records),
        undo=lambda: made[0].undo(),
    )


def told(records: Sequence[Any]) -> list[Any]:
    return [(one.status, one.detail, one.numerics) for one in records]


# Judgement.


def compare(baseline: Run, treated: Run, claim: str, steps: int) -> str | None:
    """What contradicts the claim over the first ``steps`` steps, or None. ``lossy`` and ``resampled`` promise no more
    here than a finite loss: their curves are judged over many steps."""
    if not all(math.isfinite(loss) for loss in treated.losses):
        return "a loss is not finite"
    if claim == "exact":
        for index, (before, after) in enumerate(zip(baseline.losses, treated.losses, strict=True)):
            if before != after:
                return f"loss {index} is {after!r}, not {before!r}"
        if len(baseline.state) != len(treated.state):
            return f"{len(treated.state)} parameters and buffers, not {len(baseline.state)}"
        for index, (old, new) in enumerate(zip(baseline.state, treated.state, strict=True)):
            if old.dtype != new.dtype or not torch.equal(old, new):
                return f"parameter or buffer {index} differs"
        return None
    if claim == "reordered":
        for index, (before, after) in enumerate(zip(baseline.losses, treated.losses, strict=True)):
            if index < steps and abs(after - before) > (allowed := tolerance(baseline, index)) * abs(before):
                return f"loss {index} is {after!r}, not {before!r} within {allowed:.1e}"
        if len(baseline.losses) <= steps and len(baseline.state) == len(treated.state):
            away = path_difference(baseline, treated)
            if away > PATH_TOLERANCE:
                return f"parameters {away:.1e} of their way apart, more than {PATH_TOLERANCE:g}"
    return None


def tolerance(baseline: Run, step: int) -> float:
    """By what part another order of summing may change the loss of this step."""
    return ROUNDING_FACTOR * max(ROUNDING_LEAST, baseline.rounding_ratios[step])


def share_of_tolerance(baseline: Run, treated: Run, steps: int) -> float:
    """The largest difference of a loss over the first steps, as a part of what is allowed there."""
    pairs = list(zip(baseline.losses, treated.losses, strict=True))[:steps]
    return max(abs(b - a) / abs(a) / tolerance(baseline, index) for index, (a, b) in enumerate(pairs) if a)


def path_difference(baseline: Run, treated: Run) -> float:
    """|treated - baseline| / |baseline - start| over all floating-point parameters and buffers."""
    apart = moved = 0.0
    for start, old, new in zip(baseline.start, baseline.state, treated.state, strict=True):
        if old.is_floating_point():
            apart += float((new.double() - old.double()).square().sum())
            moved += float((old.double() - start.double()).square().sum())
    return math.sqrt(apart / moved) if moved else math.inf


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One technique on one kind of training, one way. ``problem`` None where ``applied`` kept its promise."""

    fixture: str
    way: str
    applied: bool
    claim: str | None
    said: tuple[str, ...]
    problem: str | None
    loss_difference_ratio: float | None = None
    tolerance_share_ratio: float | None = None
    seconds_s: float = 0.0
    losses: tuple[float, ...] = field(default=(), repr=False)

    def as_json(self) -> dict[str, Any]:
        return {
            "fixture": self.fixture,
            "way": self.way,
            "applied": self.applied,
            "numerics": self.claim,
            "said": list(self.said),
            "problem": self.problem,
            "largest_loss_difference_ratio": self.loss_difference_ratio,
            "tolerance_share_ratio": self.tolerance_share_ratio,
        }


def judge_run(fixture: str, way: str, technique: Technique, baseline: Run, treated: Run, steps: int) -> Outcome:
    applied = [record for record in treated.records if record[0] == APPLIED]
    failed = [record for record in treated.records if record[0] == FAILED]
    said = tuple(f"{status}: {detail}" for status, detail, _ in treated.records)
    claim = max((record[2] or technique.numerics.value for record in applied), key=CLASSES.index, default=None)
    # What did not apply must have changed nothing at all.
    problem = compare(baseline, treated, claim or "exact", steps)
    if failed:
        problem = f"failed: {failed[0][1]}"
    elif not treated.records:
        problem = problem or "neither applied nor said why not"
    differences = [abs(a - b) / abs(b) for a, b in zip(treated.losses, baseline.losses, strict=True) if b]
    return Outcome(
        fixture=fixture,
        way=way,
        applied=bool(applied),
        claim=claim,
        said=said,
        problem=problem,
        loss_difference_ratio=max(differences, default=None),
        tolerance_share_ratio=share_of_tolerance(baseline, treated, steps) if claim == "reordered" else None,
        losses=treated.losses,
    )


# Processes: a forked child for each technique, so that nothing a technique sets outlives it.


def start_ranks(world_size: int, work: Callable[[int], Any]) -> Any:
    """``work(rank)`` in forked processes; rank 0's answer, or RuntimeError with what went wrong."""
    folder = tempfile.mkdtemp()
    pids = []
    for rank in range(world_size):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.alarm(MOST_S)
                os.environ.update(
                    RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_WORLD_SIZE=str(world_size)
                )
                warnings.simplefilter("ignore")
                torch.set_num_threads(1)
                torch.distributed.init_process_group(
                    "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size
                )
                answer = work(rank)
                with open(f"{folder}/{rank}", "wb") as file:
                    pickle.dump(answer, file)
                code = 0
            except BaseException as error:
                with open(f"{folder}/{rank}.error", "w") as file:
                    file.write(f"{type(error).__name__}: {error}"[:2000])
            finally:
                os._exit(code)
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    errors = [Path(f"{folder}/{rank}.error") for rank in range(world_size)]
    told = [path.read_text() for path in errors if path.exists()]
    if any(codes):
        raise RuntimeError(told[0] if told else f"the processes ended with {codes}")
    with open(f"{folder}/0", "rb") as file:
        return pickle.load(file)


def baselines_of(
    steps: int | None, seeds: Sequence[int], world_size: int, names: Sequence[str] = tuple(FIXTURES)
) -> dict[tuple[str, int], Run]:
    """Every kind without a technique, over its few steps where ``steps`` is None.

    RuntimeError where the same seed does not give the same bits twice.
    """

    def work(rank: int) -> dict[tuple[str, int], Run]:
        found = {}
        for name in names:
            fixture = FIXTURES[name]
            count = steps or fixture.few_steps
            runs = {seed: fixture.train(fixture, Hand(), count, seed) for seed in seeds}
            again = fixture.train(fixture, Hand(), min(count, FAST_STEPS), seeds[0])
            if again.losses != runs[seeds[0]].losses[: len(again.losses)]:
                raise RuntimeError(f"{name}: the same seed gave other losses; nothing can be compared to it")
            errors = rounding_errors(fixture, runs, min(count, REORDERED_STEPS))
            found.update({(name, seed): replace(run, rounding_ratios=errors) for seed, run in runs.items()})
        return found

    found: dict[tuple[str, int], Run] = start_ranks(world_size, work)
    return found


def rounding_errors(fixture: Fixture, runs: Mapping[int, Run], steps: int) -> tuple[float, ...]:
    """The largest relative difference up to each step between losses in float32 and in float64.

    Over TREATED_SEEDS at least, whatever ``runs`` (float32, by seed) holds.
    """
    largest = [0.0] * steps
    for seed in sorted({*TREATED_SEEDS, *runs}):
        narrow = runs[seed] if seed in runs else fixture.train(fixture, Hand(), steps, seed)
        wide = fixture.train(fixture, Hand(), steps, seed, torch.float64)
        for index in range(steps):
            exact = wide.losses[index]
            largest[index] = max(largest[index], abs(narrow.losses[index] - exact) / abs(exact) if exact else 0.0)
    return tuple(max(largest[: index + 1]) for index in range(steps))


def set_environment(technique: Technique) -> tuple[tuple[str, str, str | None], ...]:
    """The technique's variables in this process's environment, and what it said of them."""
    strategy = strategy_of(technique)
    if technique.id not in set(TECHNIQUES):
        return ()
    variables, facts = set_variables(strategy, dict(os.environ))
    os.environ.update(variables)
    return tuple((fact["status"], fact["detail"], fact["numerics"]) for fact in facts)


def try_everywhere(
    technique: Technique,
    baselines: Mapping[tuple[str, int], Run],
    steps: int | None,
    seed: int,
    world_size: int,
    places: Sequence[tuple[str, str]],
    techniques: Mapping[str, Technique] = TECHNIQUES,
) -> list[Outcome]:
    """The technique at each place (fixture, way), at one seed."""

    def work(rank: int) -> list[Outcome]:
        before = set_environment(technique)
        patch_calls(technique.functions)
        found = []
        for name, way in places:
            fixture = FIXTURES[name]
            began = time.monotonic()
            try:
                hand = with_technique(technique, fixture, way, techniques)
                treated = fixture.train(fixture, hand, steps or fixture.few_steps, seed)
            except UsageError as error:
                # By API a technique may refuse a training that it would get wrong, if it says so by name.
                refused = str(error).startswith(f"{technique.id}: ")
                problem = "" if refused else f"the training ended with {error}"[:500]
                outcome = Outcome(fixture=name, way=way, applied=False, claim=None, said=(str(error),), problem=problem)
                found.append(outcome)
                continue
            except Exception as error:
                problem = f"the training ended with {type(error).__name__}: {error}"[:500]
                found.append(Outcome(fixture=name, way=way, applied=True, claim=None, said=(), problem=problem))
                continue
            treated = replace(treated, records=(*before, *treated.records))
            baseline = baselines[name, seed]
            outcome = judge_run(name, way, technique, baseline, treated, REORDERED_STEPS)
            found.append(replace(outcome, seconds_s=time.monotonic() - began))
        return found

    outcomes: list[Outcome] = start_ranks(world_size, work)
    return outcomes


def compiles(technique: Technique) -> bool:
    """Whether trying it takes many seconds, so that only the slow part does."""
    return technique.stage is Stage.COMPILE or "compile" in technique.id or "graph" in technique.id


def run_fast(ids: Sequence[str]) -> dict[str, list[tuple[int, Outcome]] | str]:
    """By technique id: ranks and outcomes over a few steps, on one rank everywhere and on two where it needs two; or
    why there are none."""
    found: dict[str, list[tuple[int, Outcome]] | str] = {}
    for world_size in (1, 2):
        places = {one: fast_places(TECHNIQUES[one], world_size) for one in ids}
        names = sorted({name for several in places.values() for name, _ in several})
        baselines = baselines_of(None, SEEDS[:1], world_size, names)
        for one in ids:
            known = found.setdefault(one, [])
            if isinstance(known, str) or not places[one]:
                continue
            try:
                outcomes = try_everywhere(TECHNIQUES[one], baselines, None, SEEDS[0], world_size, places[one])
                known += [(world_size, outcome) for outcome in outcomes]
            except RuntimeError as error:
                found[one] = f"on {world_size} ranks: {error}"
    return found


def fast_places(technique: Technique, world_size: int) -> list[tuple[str, str]]:
    """Two ranks only where one does not do."""
    return [
        (name, way)
        for name, way in places_of(technique, world_size)
        if not FIXTURES[name].is_compiled and (world_size == 1 or technique.id in FIXTURES[name].for_ranks)
    ]


def made_for(ids: Sequence[str]) -> list[tuple[str, str, int]]:
    """Technique, kind and ranks: where the fast part must see it apply."""
    return [
        (one, name, world_size)
        for one in ids
        for world_size in (1, 2)
        for name in sorted({name for name, _ in fast_places(TECHNIQUES[one], world_size)})
        if one in FIXTURES[name].only and (world_size == 2) == (one in FIXTURES[name].for_ranks)
    ]


def main(ids: Sequence[str]) -> None:
    chosen = [one for one in ids or TECHNIQUES if not compiles(TECHNIQUES[one])]
    outcomes = {
        one: several
        if isinstance(several, str)
        else [{**outcome.as_json(), "ranks": ranks} for ranks, outcome in several]
        for one, several in run_fast(chosen).items()
    }
    print(json.dumps({"outcomes": outcomes, "made_for": made_for(chosen)}))


if __name__ == "__main__":
    main(sys.argv[1:])
