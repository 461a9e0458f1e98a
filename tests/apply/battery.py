"""Techniques -> for each, on small trainings of every kind, whether its numbers are what its numerics class promises.

Every training is run without and with a technique, changed by API and, through the Applier, as from outside. One
forked process per technique and number of ranks, so that what a technique sets for its process reaches no other.

    python tests/apply/battery.py fast                     one rank, a few steps; JSON on stdout
    python tests/apply/battery.py slow -o numerics.json    300 steps, several seeds, 1 and 2 ranks; resumable

Laws (class of the effect, which is the class of the technique unless the effect says better):
exact      every loss, parameter and buffer has equal bits
reordered  over the first REORDERED_STEPS steps each loss within ROUNDING_FACTOR times the rounding error that the
           training itself has by then, and the parameters within PATH_TOLERANCE of the way that they went
resampled, lossy (and reordered beyond those steps)
           in every block of steps the mean over the seeds lies between the lowest and the highest baseline seed
"""

from __future__ import annotations

import argparse
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
from torch.utils.data import DataLoader, Dataset

from hotloop.apply import TECHNIQUES
from hotloop.apply.api import apply_strategy
from hotloop.apply.applier import APPLIED, FAILED, Applier, make_context
from hotloop.apply.environment import set_variables
from hotloop.core.errors import UsageError
from hotloop.core.strategy import Choice, Strategy
from hotloop.core.techniques import Stage, Technique

FAST_STEPS = 3
SLOW_STEPS = 300
SEEDS = (1, 2, 3, 4, 5)
TREATED_SEEDS = SEEDS[:3]
BLOCK_STEPS = 50
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
WAYS = ("api", "outside")
MOST_S = 280
OUTSIDE = tuple(
    (name, "outside") for name in ("language-model", "augmented", "images", "ddp", "scaler", "fp16", "recomputed")
)
ALL_PLACES = (*OUTSIDE, ("language-model", "api"), ("images", "api"), ("ddp", "api"))

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
    """One kind of training. ``ddp`` wraps the model also on one rank; on two ranks every model is wrapped."""

    id: str
    data: Callable[[], Any]
    model: Callable[[Any], nn.Module]
    ddp: bool = False
    scaler: bool = False
    clip: bool = False
    micro_batches: int = 1
    fp16: bool = False
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda parameters: torch.optim.AdamW(parameters, 3e-3, eps=1e-6)


def language_model(**options: Any) -> Callable[[Any], nn.Module]:
    return lambda data: LanguageModel(data.vocabulary, **options)


FIXTURES: Mapping[str, Fixture] = {
    one.id: one
    for one in (
        Fixture(id="language-model", data=Windows, model=language_model()),
        Fixture(id="augmented", data=lambda: Windows(8), model=language_model(by_hand=True), micro_batches=2),
        Fixture(id="images", data=Images, model=image_model, optimizer=lambda p: torch.optim.SGD(p, 0.05, 0.9)),
        Fixture(id="ddp", data=Windows, model=language_model(), ddp=True, micro_batches=2),
        Fixture(id="scaler", data=Windows, model=language_model(), scaler=True, clip=True),
        Fixture(id="fp16", data=Windows, model=language_model(), scaler=True, fp16=True),
        Fixture(id="recomputed", data=Windows, model=language_model(recompute=True), clip=True),
    )
}


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


def train(fixture: Fixture, hand: Hand, steps: int, seed: int, dtype: torch.dtype = torch.float32) -> Run:
    """One training on this rank, from its seed. In float64 it starts from the same float32 numbers."""
    random.seed(seed)
    torch.manual_seed(seed)
    distributed = torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
    data = fixture.data()
    sampler = None
    if distributed:
        sampler = torch.utils.data.DistributedSampler(data, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    loader: Any = DataLoader(
        data, batch_size=BATCH, shuffle=sampler is None, sampler=sampler, generator=draw, drop_last=True
    )
    loader = hand.loader(loader)
    model: Any = fixture.model(data).to(dtype)
    bare = model
    start = snapshot(bare)
    wrap = distributed or fixture.ddp
    if wrap:
        arguments: dict[str, Any] = {"module": model}
        hand.ddp(arguments)
        model = nn.parallel.DistributedDataParallel(**arguments)
    optimizer: Any = fixture.optimizer(model.parameters())
    hand.optimizer(optimizer)
    scaler: Any = None
    if fixture.scaler:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        hand.scaler(scaler)
    model, optimizer, loader, scaler = hand.objects(model, optimizer, loader, scaler)

    def batches() -> Iterator[Any]:
        epoch = 0
        while True:
            if sampler is not None:
                sampler.set_epoch(epoch)
            yield from loader
            epoch += 1

    losses = []
    feed = batches()
    for _ in range(steps):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(fixture.micro_batches):
            x, y = next(feed)
            x = x.to(dtype) if x.is_floating_point() else x
            model = hand.model(model)
            with torch.autocast("cpu", torch.float16) if fixture.fp16 else contextlib.nullcontext():
                out = model(x)
            loss = nn.functional.cross_entropy(out.to(dtype).flatten(0, -2), y.flatten()) / fixture.micro_batches
            hand.backward()
            (loss if scaler is None else scaler.scale(loss)).backward()
            total += loss.detach().item()
        if fixture.clip:
            if scaler is not None:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
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
    return Run(losses=tuple(losses), start=start, state=state, records=tuple(records))


def snapshot(model: Any) -> tuple[torch.Tensor, ...]:
    """Copies of parameters and buffers, whole where they are sharded."""
    with torch.no_grad():
        found = [*model.parameters(), *model.buffers()]
        whole = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in found]
        return tuple(one.detach().clone(memory_format=torch.contiguous_format) for one in whole)


# The two ways in.

SETTINGS: Mapping[str, dict[str, Any]] = {
    "comm-variables": {"debug": "WARN"},
    # No fixture has the loop that it replaces: so small that the numbers must stay within rounding.
    "decay-in-optimizer": {"weight_decay": 1e-7},
}
"""Of techniques that have to be told what to do."""


def strategy_of(technique: Technique) -> Strategy:
    return Strategy(choices=(Choice(technique=technique.id, settings=SETTINGS.get(technique.id, {})),))


def with_technique(technique: Technique, way: str, techniques: Mapping[str, Technique]) -> Hand:
    strategy = strategy_of(technique)
    if way == "outside":
        return from_outside(strategy, techniques)
    return by_api(strategy)


def from_outside(strategy: Strategy, techniques: Mapping[str, Technique]) -> Hand:
    applier = Applier(strategy, techniques, make_context(strategy, from_outside=True))
    applier.start()

    def end() -> list[Any]:
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
        applied = apply_strategy(strategy, model=model, optimizer=optimizer, loader=loader)
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


def blocks_of(losses: Sequence[float]) -> list[float]:
    return [sum(losses[i : i + BLOCK_STEPS]) / BLOCK_STEPS for i in range(0, len(losses), BLOCK_STEPS)]


def outside_spread(baselines: Sequence[Sequence[float]], treated: Sequence[Sequence[float]]) -> str | None:
    """The first block in which the treated seeds' mean leaves the baseline seeds' range, or None."""
    old = [blocks_of(losses) for losses in baselines]
    new = [blocks_of(losses) for losses in treated]
    for index in range(len(old[0])):
        low, high = min(seed[index] for seed in old), max(seed[index] for seed in old)
        mean = sum(seed[index] for seed in new) / len(new)
        if not low <= mean <= high:
            first = index * BLOCK_STEPS
            return f"steps {first}..{first + BLOCK_STEPS}: mean loss {mean:.5f} outside {low:.5f}..{high:.5f}"
    return None


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
    steps: int, seeds: Sequence[int], world_size: int, names: Sequence[str] = tuple(FIXTURES)
) -> dict[tuple[str, int], Run]:
    """Every fixture without a technique; RuntimeError where the same seed does not give the same bits twice."""

    def work(rank: int) -> dict[tuple[str, int], Run]:
        found = {}
        for name in names:
            fixture = FIXTURES[name]
            runs = {seed: train(fixture, Hand(), steps, seed) for seed in seeds}
            again = train(fixture, Hand(), min(steps, FAST_STEPS), seeds[0])
            if again.losses != runs[seeds[0]].losses[: len(again.losses)]:
                raise RuntimeError(f"{name}: the same seed gave other losses; nothing can be compared to it")
            errors = rounding_errors(fixture, runs, min(steps, REORDERED_STEPS))
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
        narrow = runs[seed] if seed in runs else train(fixture, Hand(), steps, seed)
        wide = train(fixture, Hand(), steps, seed, torch.float64)
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
    steps: int,
    seed: int,
    world_size: int,
    places: Sequence[tuple[str, str]],
    techniques: Mapping[str, Technique] = TECHNIQUES,
) -> list[Outcome]:
    """The technique at each place (fixture, way), at one seed."""

    def work(rank: int) -> list[Outcome]:
        before = set_environment(technique)
        found = []
        for name, way in places:
            fixture = FIXTURES[name]
            began = time.monotonic()
            try:
                treated = train(fixture, with_technique(technique, way, techniques), steps, seed)
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


def run_fast(ids: Sequence[str], world_size: int = 1) -> dict[str, list[Outcome] | str]:
    """By technique id: its outcomes over a few steps, or why there are none."""
    baselines = baselines_of(FAST_STEPS, SEEDS[:1], world_size)
    found: dict[str, list[Outcome] | str] = {}
    for one in ids:
        try:
            found[one] = try_everywhere(TECHNIQUES[one], baselines, FAST_STEPS, SEEDS[0], world_size, ALL_PLACES)
        except RuntimeError as error:
            found[one] = str(error)
    return found


class Baselines(Mapping[tuple[str, int], Run]):
    """Runs without a technique, by fixture and seed; made when they are asked for, kept beside the result."""

    def __init__(self, folder: Path, steps: int, world_size: int) -> None:
        self._folder, self._steps, self._world_size = folder, steps, world_size
        self._runs: dict[tuple[str, int], Run] = {}

    def __getitem__(self, key: tuple[str, int]) -> Run:
        if key not in self._runs:
            self._load(key[0])
        return self._runs[key]

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def _load(self, name: str) -> None:
        file = self._folder / f"{name}-{self._steps}-steps-{self._world_size}-ranks-{torch.__version__}-rounding.pt"
        if file.exists():
            kept = torch.load(file, weights_only=True)
        else:
            runs = baselines_of(self._steps, SEEDS, self._world_size, [name])
            kept = {
                seed: (list(run.losses), list(run.start), list(run.state), list(run.rounding_ratios))
                for (_, seed), run in runs.items()
            }
            self._folder.mkdir(parents=True, exist_ok=True)
            scratch = file.with_suffix(".new")
            torch.save(kept, scratch)
            scratch.replace(file)
        for seed, (losses, start, state, errors) in kept.items():
            self._runs[name, seed] = Run(
                losses=tuple(losses), start=tuple(start), state=tuple(state), rounding_ratios=tuple(errors)
            )


def run_slow(
    ids: Sequence[str], out: Path, steps: int, world_sizes: Sequence[int], limit_s: float = math.inf
) -> dict[str, Any]:
    """Judge every technique that ``out`` does not hold yet, and write it there after each; past the limit, no more."""
    result = read_result(out, steps)
    began = time.monotonic()
    for world_size in world_sizes:
        todo = [one for one in ids if str(world_size) not in result["techniques"].get(one, {}).get("ranks", {})]
        if not todo or time.monotonic() - began > limit_s:
            continue
        baselines = Baselines(out.parent / ".numerics-baselines", steps, world_size)
        short = Baselines(out.parent / ".numerics-baselines", FAST_STEPS, world_size)
        for one in todo:
            if time.monotonic() - began > limit_s:
                break
            started = time.monotonic()
            verdict = judge_slowly(TECHNIQUES[one], baselines, short, steps, world_size)
            verdict["took_s"] = round(time.monotonic() - started, 1)
            entry = result["techniques"].setdefault(one, {"class": TECHNIQUES[one].numerics.value, "ranks": {}})
            entry["ranks"][str(world_size)] = verdict
            out.parent.mkdir(parents=True, exist_ok=True)
            scratch = out.with_suffix(".new")
            scratch.write_text(json.dumps(result, indent=1) + "\n")
            scratch.replace(out)
            print(
                f"{one} on {world_size}: {verdict['verdict']}, {verdict['took_s']} s {verdict['why'][:1]}",
                file=sys.stderr,
                flush=True,
            )
    return result


def summarize(result: Mapping[str, Any]) -> str:
    """The result as a page."""
    parts = [part for entry in result["techniques"].values() for part in entry["ranks"].values()]
    minutes = sum(part.get("took_s", 0) for part in parts) / 60
    lines = [
        "<!-- Generated by tests/apply/battery.py from benchmarks/results/numerics.json; do not edit. -->",
        "# What every technique does to the numbers",
        "",
        f"`make numerics`: small trainings of {len(FIXTURES)} kinds, each without and with a technique, by API and as "
        f"from outside. Where it applies over {FAST_STEPS} steps, it is trained for {result['steps']}. `exact`: equal "
        f"bits of every loss, parameter and buffer. `reordered`: losses within {result['rounding_factor']} times the "
        "rounding error that the training has without it, which is the largest difference between its losses in "
        f"float32 and in float64 up to that step, over {result['reordered_steps']} steps (the part of it that was "
        f"needed stands behind the class). These beyond, `resampled` and `lossy`: in every block of {BLOCK_STEPS} "
        f"steps the mean over {result['treated_seeds']} seeds lies within the range of {result['baseline_seeds']} "
        "seeds without it.",
        "",
        f"{result['machine']}, torch {result['torch']}, {result['date']}; {minutes:.0f} minutes of a busy machine for "
        f"the {len(parts)} results below. A technique that applies to none of the kinds here (most of these are for "
        "accelerators) is not judged; what is missing was not reached.",
        "",
        "The trainings are smooth, without ReLU. Where an input lies within a rounding of its kink, another order of "
        "summing flips it, and the losses part by more than roundings: under channels_last on 2 ranks one of 24,832 "
        "inputs did so in step 5 of one seed of three, and a loss that had been 1e-7 away was 2e-5 away in step 14.",
        "",
        "| technique | class | 1 rank | 2 ranks |",
        "|---|---|---|---|",
    ]
    for name in sorted(result["techniques"]):
        entry = result["techniques"][name]
        cells = [_cell(entry["ranks"].get(ranks)) for ranks in ("1", "2")]
        lines.append(f"| [{name}](techniques.md#{name}) | {entry['class']} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines) + "\n"


def _cell(part: Mapping[str, Any] | None) -> str:
    if part is None:
        return "not reached"
    if part["verdict"] == "did not apply":
        return "does not apply here"
    places = [
        f"{one['fixture']}, {one['way']}: {one['numerics']}{_share(one)}, {one['steps']} steps x {one['seeds']}"
        for one in part.get("long", ())
    ]
    why = [" ".join(text.split())[:160].replace("|", "/") for text in part["why"][:1]]
    return "; ".join([f"**{part['verdict']}**" if part["verdict"] == "failed" else part["verdict"], *places, *why])


def _share(one: Mapping[str, Any]) -> str:
    share = one.get("tolerance_share_ratio")
    return "" if share is None else f" ({share:.2g})"


def judge_slowly(
    technique: Technique,
    baselines: Mapping[tuple[str, int], Run],
    short: Mapping[tuple[str, int], Run],
    steps: int,
    world_size: int,
) -> dict[str, Any]:
    """Where it applies over a few steps, then at most two of these places over all steps and several seeds."""
    for name in FIXTURES:
        _ = short[name, SEEDS[0]]  # made before the children are forked
    try:
        first = try_everywhere(technique, short, FAST_STEPS, SEEDS[0], world_size, ALL_PLACES)
    except RuntimeError as error:
        return {"verdict": "failed", "why": [str(error)]}
    problems = [f"{one.fixture}, {one.way}: {one.problem}" for one in first if one.problem]
    answer: dict[str, Any] = {"places": [one.as_json() for one in first], "long": []}
    applied = [one for one in first if one.applied and one.problem is None]
    if not applied and not problems:
        return {"verdict": "did not apply", "why": sorted({said for one in first for said in one.said})} | answer
    chosen = {next((one.way, one.fixture) for one in applied if one.way == way) for way in {a.way for a in applied}}
    for way, name in sorted(chosen):
        runs = []
        _ = baselines[name, SEEDS[0]]
        for seed in TREATED_SEEDS:
            try:
                runs += try_everywhere(technique, baselines, steps, seed, world_size, [(name, way)])
            except RuntimeError as error:
                problems.append(f"{name}, {way}, seed {seed}: {error}")
                break
            if runs[-1].problem:
                problems.append(f"{name}, {way}, seed {seed}: {runs[-1].problem}")
            if runs[-1].claim == "exact":
                break
        claim = max((run.claim for run in runs if run.claim), key=CLASSES.index, default=None)
        if runs and claim != "exact":
            spread = outside_spread([baselines[name, seed].losses for seed in SEEDS], [run.losses for run in runs])
            problems += [f"{name}, {way}: {spread}"] if spread else []
        answer["long"].append(
            {
                "fixture": name,
                "way": way,
                "numerics": claim,
                "steps": steps,
                "seeds": len(runs),
                "baseline_seeds": len(SEEDS),
                "tolerance_share_ratio": max(
                    (run.tolerance_share_ratio for run in runs if run.tolerance_share_ratio is not None), default=None
                ),
                "allowed_at_last_reordered_step_ratio": tolerance(baselines[name, SEEDS[0]], REORDERED_STEPS - 1),
                "last_block_loss": [blocks_of(run.losses)[-1] for run in runs if run.losses],
                "baseline_last_block_loss": [blocks_of(baselines[name, seed].losses)[-1] for seed in SEEDS],
            }
        )
    return {"verdict": "failed" if problems else "kept", "why": problems} | answer


def read_result(out: Path, steps: int) -> dict[str, Any]:
    head = {
        "schema": "hotloop.numerics/1",
        "date": time.strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "steps": steps,
        "baseline_seeds": len(SEEDS),
        "treated_seeds": len(TREATED_SEEDS),
        "rounding_factor": ROUNDING_FACTOR,
        "path_tolerance_ratio": PATH_TOLERANCE,
        "reordered_steps": REORDERED_STEPS,
    }
    if out.exists():
        old = json.loads(out.read_text())
        same = ("schema", "torch", "steps", "rounding_factor", "path_tolerance_ratio", "reordered_steps")
        if all(old.get(key) == head[key] for key in same):
            return {**old, "date": head["date"]}
    return {**head, "techniques": {}}


def describe_machine() -> str:
    """Processor and cores, as /proc says it."""
    name = "unknown processor"
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        name = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), name)
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Judge the numerics of techniques.")
    parser.add_argument("part", choices=("fast", "slow"))
    parser.add_argument("ids", nargs="*", help="techniques (default: all)")
    parser.add_argument("-o", "--out", type=Path, default=Path("benchmarks/results/numerics.json"))
    parser.add_argument("--steps", type=int, default=SLOW_STEPS)
    parser.add_argument("--limit-s", type=float, default=math.inf, help="begin no further technique after this time")
    parser.add_argument("--summarize", type=Path, metavar="PAGE", help="write the result as a page")
    parser.add_argument("--ranks", type=int, nargs="*", default=(1, 2))
    chosen = parser.parse_args(arguments)
    ids = chosen.ids or list(TECHNIQUES)
    if chosen.part == "fast":
        ids = [one for one in ids if not compiles(TECHNIQUES[one])]
        found = run_fast(ids)
        print(json.dumps({k: v if isinstance(v, str) else [o.as_json() for o in v] for k, v in found.items()}))
        return 0
    ids = sorted(ids, key=lambda one: compiles(TECHNIQUES[one]))  # what takes minutes comes last
    result = run_slow(ids, chosen.out, chosen.steps, chosen.ranks, chosen.limit_s)
    if chosen.summarize is not None:
        chosen.summarize.write_text(summarize(result))
    missing = sum(
        str(ranks) not in result["techniques"].get(one, {}).get("ranks", {}) for one in ids for ranks in chosen.ranks
    )
    if missing:
        print(f"{missing} results are still to come: run it again", file=sys.stderr)
    bad = [
        one
        for one, entry in result["techniques"].items()
        if any(part["verdict"] == "failed" for part in entry["ranks"].values())
    ]
    print(f"broken promises: {', '.join(bad) or 'none'}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
