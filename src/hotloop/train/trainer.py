"""Trainer: model, optimizer and a loss function -> training on any number of ranks that resumes bit for bit."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler

from hotloop.change.apply import TECHNIQUES, check_strategy, settings_of
from hotloop.change.apply.applier import Applier, make_context
from hotloop.change.apply.compression import hooks_of
from hotloop.change.apply.device_batches import move_batch
from hotloop.change.apply.modules import is_sharded
from hotloop.change.apply.offer import Offer, offered_choices
from hotloop.core.applied import APPLIED, NOT_APPLICABLE, AppliedTechnique
from hotloop.core.errors import HotloopError, UsageError
from hotloop.core.strategy import Choice, Strategy, StrategyError, chain, load_strategy, strategy_to_mapping
from hotloop.train.processes import read_generators, restore_generators, seed_generators

from .accumulate import batch_size, micro_batches, without_exchange
from .checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointWriter,
    latest_checkpoint,
    list_checkpoints,
    model_state,
    open_checkpoint,
    optimizer_kind,
    optimizer_state,
    restore,
    restore_own,
    step_of,
)
from .marker import remove_marker, write_marker
from .order import BatchOrder, Layout
from .processes import Ranks, first_error, join_ranks
from .stopping import StopWatch, keep_from_signals

Step = Callable[[Any, Any], torch.Tensor]
"""``step(model, batch)`` calls the model and returns the mean loss over the batch's samples."""

PREEMPTED_EXIT_CODE = 75
"""EX_TEMPFAIL: stopped by a signal, saved, ready to be started again."""

_PRECISIONS = {"bf16": "bf16-autocast", "fp16": "fp16-autocast"}
_ACCUMULATION = "accumulation"
_SHARDING = "fsdp2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """Where and when a Trainer saves. A path instead of it means these defaults.

    ``resume``: 'auto' continues from the newest complete checkpoint of the folder, 'never' refuses a folder with
    checkpoints, a path continues from that checkpoint. ``keep`` None keeps all. ``on_error``: 'stop' training or
    'continue' it (with a warning) when one cannot be written.
    """

    folder: str | Path
    every_steps: int | None = None
    keep: int | None = 3
    asynchronous: bool = True
    resume: str | Path = "auto"
    on_error: str = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """How a ``fit`` ended. Counts include those of earlier runs before a resume."""

    steps_count: int
    epochs_count: int
    resumed_from: Path | None
    validation_losses: tuple[float, ...]
    """The losses of this run, in order."""
    records: tuple[AppliedTechnique, ...]
    """The strategy's changes, and the parts that did not apply."""


class Preempted(SystemExit):
    """A signal stopped training after a complete step, which is saved. Uncaught, the process exits with 75."""

    def __init__(self, *, signal_number: int, step: int, checkpoint: Path | None) -> None:
        super().__init__(PREEMPTED_EXIT_CODE)
        self.signal_number = signal_number
        self.step = step
        self.checkpoint = checkpoint


@dataclass(slots=True)
class _Place:
    """The current position of training; written into checkpoints."""

    step: int = 0
    epoch: int = 0
    samples: int = 0
    """Samples taken in this epoch, over all ranks; batches of this rank for a loader with its own order."""


class Trainer:
    """Trains; callbacks are plain objects with any of on_fit_start(trainer), on_step_end(trainer, loss),
    on_validation(trainer, loss), on_fit_end(trainer, result), state_dict() and
    load_state_dict(state). Losses are passed as tensors: reading one waits for the device, so nothing here does.

    ``optimizer`` is an optimizer, or a function of the model's parameters that builds it (needed where a strategy
    replaces the parameters, as FSDP does); ``scheduler`` is the same for the optimizer, and advances once per step.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Any,
        step: Step,
        *,
        precision: str = "fp32",
        accumulate: int = 1,
        strategy: Strategy | str | Path | None = None,
        backend: str | None = None,
        device: str | torch.device | None = None,
        callbacks: Sequence[Any] = (),
        clip_norm: float | None = None,
        scheduler: Any = None,
        checkpoint: Checkpoints | str | Path | None = None,
        seed: int = 0,
        keep_global_batch: bool = True,
    ) -> None:
        self.strategy, self.accumulate, self.split = _choose(precision, accumulate, strategy)
        self._taken: frozenset[str] = frozenset()
        self._offer = offered_choices()
        if self._offer is not None:
            self._take_over(self._offer, has_built_optimizer=not _is_function(optimizer, "step"))
        if clip_norm is not None and not clip_norm > 0:
            raise UsageError(f"clip_norm={clip_norm!r}: give a number above 0, or None")
        self.checkpoints = Checkpoints(folder=checkpoint) if isinstance(checkpoint, str | Path) else checkpoint
        _check_checkpoints(self.checkpoints)
        self.ranks: Ranks = join_ranks(backend=backend, device=device)
        self.seed = seed
        self.callbacks = tuple(callbacks)
        self.clip_norm = clip_norm
        self.place = _Place()
        self._step = step
        self.keep_global_batch = keep_global_batch
        context = make_context(self.strategy, from_outside=False)
        self._applier = Applier(self.strategy, TECHNIQUES, context, emit=self._report_choice)
        self._applier.start()
        self.model: Any = self._build_model(model)
        self.optimizer: Any = self._build_optimizer(optimizer)
        self.scheduler: Any = scheduler(self.optimizer) if _is_function(scheduler, "step") else scheduler
        self.scaler = self._find_scaler()
        self._loaders: dict[int, tuple[Any, Any, BatchOrder | None]] = {}

    def fit(
        self, train: Iterable[Any], val: Iterable[Any] | None = None, *, epochs: int = 1, max_steps: int | None = None
    ) -> FitResult:
        """Train for this many epochs, or optimizer steps, counted from the very first start of this run.

        ``train`` is a DataLoader with the batch size of one rank. Over a map-style dataset with torch's own random or
        sequential sampler the order follows from ``seed`` and the epoch, is split over the ranks, and no sample is lost
        or repeated, whatever the number of ranks. Any other loader keeps its own order.
        """
        seed_generators(self.seed + self.ranks.rank)
        found = self._resume()
        loader, order = self._prepare_loader(train)
        writer = None
        if self.checkpoints is not None:
            chosen = self.checkpoints
            writer = CheckpointWriter(
                chosen.folder, ranks=self.ranks, keep=chosen.keep, asynchronous=chosen.asynchronous
            )
            if self.ranks.rank == 0:
                remove_marker(writer.folder)
        run = _Run(self, loader, order, writer, found, max_steps)
        losses: list[float] = []
        self._call("on_fit_start", self)
        self.model.train()
        with StopWatch(self.ranks.control) as watch:
            while self.place.epoch < epochs and not run.is_full():
                signal_number = run.train_epoch(watch)
                if signal_number:
                    self._preempt(run, signal_number)
                if not run.epoch_ended:
                    break
                if val is not None:
                    losses.append(self.validate(val))
                    self._call("on_validation", self, losses[-1])
            run.save()
            run.settle()
        self.optimizer.zero_grad()
        self._applier.finish()
        result = FitResult(
            steps_count=self.place.step,
            epochs_count=self.place.epoch,
            resumed_from=None if found is None else found.path,
            validation_losses=tuple(losses),
            records=tuple(self._applier.records),
        )
        self._call("on_fit_end", self, result)
        return result

    @torch.no_grad()
    def validate(self, val: Iterable[Any]) -> float:
        """The mean loss over all samples of all ranks, in eval mode. Random number generators keep their state."""
        loader, order = self._prepare_loader(val)
        if order is not None:
            order.set_position(0, 0)
        kept = read_generators()
        was_training = self.model.training
        self.model.eval()
        try:
            losses = [self._step(self.model, self._to_device(batch)).detach() for batch in loader]
        finally:
            self.model.train(was_training)
            restore_generators(kept)
        counts = [1] * len(losses) if order is None else order.sizes()
        total = torch.zeros(2, dtype=torch.float64)
        if losses:
            weights = torch.tensor(counts, dtype=torch.float64)
            total[0] = (torch.stack(losses).double().cpu() * weights).sum()
            total[1] = weights.sum()
        if self.ranks.control is not None:
            dist.all_reduce(total, group=self.ranks.control)
        return float(total[0] / total[1]) if total[1] else float("nan")

    # -- what `run --strategy` and tune hand over ----------------------------------------------------------------------

    def _take_over(self, offer: Offer, *, has_built_optimizer: bool) -> None:
        """Choices that the command was started with and that nothing else can apply. The script's own choices stay."""
        own = {one.technique for one in self.strategy.choices} | ({_ACCUMULATION} if self.split > 1 else set())
        taken: list[Choice] = []
        for choice in offer.strategy.choices:
            why = "the script sets it" if choice.technique in own else ""
            if choice.technique == _SHARDING and has_built_optimizer:
                why = (
                    "the script passes an optimizer that refers to the unsharded parameters; pass a function that "
                    "builds it"
                )
            try:
                check_strategy(chain(self.strategy, Strategy(choices=(*taken, choice))), TECHNIQUES)
            except StrategyError as error:
                why = why or str(error)
            if why:
                offer.emit(_record_of(choice, NOT_APPLICABLE, why))
            else:
                taken.append(choice)
        offer.give_up([one.technique for one in offer.strategy.choices])
        self._taken = frozenset(one.technique for one in taken)
        whole, _, parts = _choose("fp32", 1, chain(self.strategy, Strategy(choices=tuple(taken))))
        self.strategy, self.split = replace(whole, name=self.strategy.name), max(self.split, parts)

    def _report_choice(self, record: AppliedTechnique) -> None:
        if self._offer is not None and record.technique in self._taken:
            self._offer.emit(record)

    def _check_split(self, batch: Any) -> None:
        """Once, at the first batch: parts that were requested from outside must not end a training they do not fit."""
        if self._offer is None or _ACCUMULATION not in self._taken:
            return
        choice = self._offer.strategy.get(_ACCUMULATION)
        assert choice is not None
        try:
            size = batch_size(batch)
        except HotloopError as error:
            self.split = 1
            self._offer.emit(_record_of(choice, NOT_APPLICABLE, str(error)))
        else:
            detail = f"each batch of {size} samples in {min(self.split, size)} parts"
            self._offer.emit(_record_of(choice, APPLIED, detail, TECHNIQUES[_ACCUMULATION].numerics.value))
        self._taken -= {_ACCUMULATION}

    # -- building ------------------------------------------------------------------------------------------------------

    def _build_model(self, model: torch.nn.Module) -> Any:
        model.to(self.ranks.device)
        synchronises = isinstance(model, torch.nn.parallel.DistributedDataParallel) or any(
            is_sharded(part) for part in model.modules()
        )
        if self.ranks.world_size > 1 and not synchronises:
            if self.strategy.get(_SHARDING) is not None:
                return self._shard_model(model)
            return self._applier.model_met(self._wrap_model(model))
        return self._applier.model_met(model)

    def _wrap_model(self, model: Any) -> Any:
        arguments: dict[str, Any] = {"module": model}
        if self.ranks.device.type == "cuda":
            arguments["device_ids"] = [self.ranks.device.index]
        self._applier.ddp_arguments(arguments)
        return torch.nn.parallel.DistributedDataParallel(**arguments)

    def _shard_model(self, model: torch.nn.Module) -> Any:
        """The model sharded over the ranks, from rank 0's values, as DistributedDataParallel would start."""
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.detach(), src=0)
        built = self._applier.model_met(model)
        entries = [one for one in self._applier.records if one.technique == _SHARDING]
        if not any(one.status == "applied" for one in entries):
            # Neither cut nor copied, every rank would train a model of its own.
            if _SHARDING in self._taken:  # it was requested from outside the script, which trains as it would without
                return self._wrap_model(built)
            why = entries[-1].detail if entries else "it is limited to other places (where)"
            raise UsageError(
                f"{_SHARDING} cannot shard the model over the {self.ranks.world_size} ranks: {why}; remove it from "
                "the strategy to keep the entire model on every rank"
            )
        return built

    def _build_optimizer(self, optimizer: Any) -> Any:
        built = optimizer(self.model.parameters()) if _is_function(optimizer, "step") else optimizer
        mine = {id(parameter) for parameter in self.model.parameters()}
        for group in built.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in mine:
                    raise UsageError(
                        f"the optimizer holds a parameter of shape {list(parameter.shape)} that the model does not "
                        "have; pass a function, such as optimizer=lambda parameters: AdamW(parameters)"
                    )
        self._applier.optimizer_built(built)
        self._applier.waiting.clear()
        return self._applier.change_optimizer(built)

    def _find_scaler(self) -> Any:
        """The scaler of fp16-autocast, when that was applied."""
        if not any(one.technique == "fp16-autocast" and one.status == "applied" for one in self._applier.records):
            return None
        made = self._applier.context.memory("fp16-autocast").get("scaler")
        scaler = made if made is not None else torch.amp.GradScaler(self.ranks.device.type)
        self._applier.scaler_built(scaler)
        return scaler

    def _prepare_loader(self, given: Any) -> tuple[Any, BatchOrder | None]:
        """A loader in an order that can be resumed, where the given loader allows it; created once for each."""
        if id(given) in self._loaders:
            kept, loader, order = self._loaders[id(given)]
            if kept is given:
                return loader, order
        if isinstance(given, Dataset):
            raise UsageError("train and val are DataLoaders; pass DataLoader(dataset, batch_size=...)")
        loader, order = given, None
        shuffled = _is_shuffled(given)
        if shuffled is not None:
            layout = Layout(
                samples_count=len(given.dataset),
                batch_size=given.batch_size,
                rank=self.ranks.rank,
                world_size=self.ranks.world_size,
                drop_last=given.drop_last,
            )
            order = BatchOrder(layout, shuffle=shuffled, seed=self.seed)
            loader = _with_order(given, order)
        elif self.ranks.world_size > 1 and not hasattr(getattr(given, "sampler", None), "num_replicas"):
            warnings.warn(
                f"{type(given).__name__} defines its own order, so hotloop does not split it over the "
                f"{self.ranks.world_size} ranks",
                stacklevel=3,
            )
        if isinstance(loader, DataLoader):
            loader = self._applier.loader_built(loader)
            keep_from_signals(loader)
        self._loaders[id(given)] = (given, loader, order)
        return loader, order

    def _to_device(self, batch: Any) -> Any:
        """The nested batch with its tensors on the device; copies from pinned memory are not waited for."""
        device = self.ranks.device
        if device.type == "cpu":
            return batch

        def move(leaf: Any) -> Any:
            return leaf.to(device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf.to(device)

        return move_batch(batch, move)

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def _trees(self) -> dict[str, Any]:
        trees = {"model": model_state(self.model), "optimizer": optimizer_state(self.optimizer, self.ranks.rank)}
        return trees | {name: value.state_dict() for name, value in self._plain_parts().items()}

    def _plain_parts(self) -> dict[str, Any]:
        parts = {"scheduler": self.scheduler, "scaler": self.scaler}
        parts |= {
            f"callback-{index}": one
            for index, one in enumerate(self.callbacks)
            if hasattr(one, "state_dict") and hasattr(one, "load_state_dict")
        }
        return {name: value for name, value in parts.items() if value is not None}

    def _own_parts(self) -> dict[str, Any]:
        """State that each rank keeps for itself: gradients that its communication hooks have not sent yet."""
        return {f"compression-{index}": hook for index, hook in enumerate(hooks_of(self.model))}

    def _restore_own(self, checkpoint: Checkpoint) -> None:
        """Gradients that were not sent may begin at zero again; any difference is the same on all ranks."""
        parts = self._own_parts()
        error: CheckpointError | None = None
        try:
            if parts and checkpoint.world_size != self.ranks.world_size:
                raise CheckpointError(f"{checkpoint.path} was written by {checkpoint.world_size} ranks")
            restore_own(checkpoint, parts)
        except CheckpointError as raised:
            error = raised
        text = first_error(error, self.ranks.control) if parts else None
        if text is not None:
            for part in parts.values():
                part.forget()
            warnings.warn(f"{text}: the gradients that communication hooks keep start at zero", stacklevel=4)

    def _state(self, order: BatchOrder | None, accumulate: int) -> dict[str, Any]:
        groups = self.optimizer.param_groups
        return {
            "place": {"step": self.place.step, "epoch": self.place.epoch, "samples": self.place.samples},
            "order": None if order is None else _identity_of(order),
            "accumulate": accumulate,
            "window": None if order is None else order.layout.window,
            "strategy": strategy_to_mapping(self.strategy),
            "optimizer_kind": optimizer_kind(self.optimizer),
            "optimizer_counts": [len(group["params"]) for group in groups],
        }

    def _resume(self) -> Checkpoint | None:
        """Load the requested checkpoint. The loader's part waits until the loader runs."""
        if self.checkpoints is None:
            return None
        chosen: list[str | None] = [None, None]  # the path, and why there is none
        if self.ranks.rank == 0:
            try:
                found = self._choose_checkpoint(self.checkpoints)
                chosen[0] = None if found is None else str(found)
            except UsageError as error:
                chosen[1] = str(error)
        if self.ranks.control is not None:
            dist.broadcast_object_list(chosen, src=0, group=self.ranks.control)
        path, problem = chosen
        if problem is not None:
            raise CheckpointError(problem)
        if path is None:
            return None
        checkpoint = open_checkpoint(path, rank=self.ranks.rank)
        restore(checkpoint, model=self.model, optimizer=self.optimizer, plain=self._plain_parts())
        self._restore_own(checkpoint)
        self.place = _Place(**checkpoint.state["place"])
        return checkpoint

    def _choose_checkpoint(self, checkpoints: Checkpoints) -> Path | None:
        if checkpoints.resume == "auto":
            return latest_checkpoint(checkpoints.folder)
        found = list_checkpoints(checkpoints.folder)
        if checkpoints.resume != "never":
            path = Path(checkpoints.resume)
            if found and step_of(found[-1]) > step_of(path):
                raise CheckpointError(
                    f"{checkpoints.folder} holds {found[-1].name}, which is later than {path} and would be mixed "
                    "with the new checkpoints; choose another folder for them"
                )
            return path
        if found:
            raise CheckpointError(
                f"{checkpoints.folder} holds {found[-1].name} but resume is 'never'; choose another folder, or "
                "resume='auto'"
            )
        return None

    def _preempt(self, run: _Run, signal_number: int) -> None:
        run.save()
        saved = None
        if run.writer is not None:
            run.writer.wait()
            saved = run.writer.folder / f"step-{self.place.step:08d}"
            if self.ranks.rank == 0:
                write_marker(run.writer.folder, signal_number=signal_number, step=self.place.step, checkpoint=saved)
        raise Preempted(signal_number=signal_number, step=self.place.step, checkpoint=saved)

    def _call(self, name: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            method = getattr(callback, name, None)
            if method is not None:
                method(*arguments)


class _Run:
    """The loop of one ``fit``: everything that can be settled before it begins, so that a step does only its work."""

    def __init__(
        self,
        trainer: Trainer,
        loader: Any,
        order: BatchOrder | None,
        writer: CheckpointWriter | None,
        found: Checkpoint | None,
        max_steps: int | None,
    ) -> None:
        self.trainer = trainer
        self.loader = loader
        self.order = order
        self.writer = writer
        self.max_steps = max_steps
        self.epoch_ended = False
        self.accumulate = trainer.accumulate
        self._found = found
        self._saved_step = None if found is None else found.step
        self._epoch_generators: dict[str, Any] | None = None
        self._every = None if trainer.checkpoints is None else trainer.checkpoints.every_steps
        self._listeners = [
            method for one in trainer.callbacks if (method := getattr(one, "on_step_end", None)) is not None
        ]
        if found is not None:
            self.accumulate = _accumulation_to_resume(trainer, found, order)
        if order is not None:
            order.layout = replace(order.layout, accumulate=self.accumulate)
        elif self.accumulate > 1:
            try:
                len(loader)
            except TypeError as error:
                raise UsageError(
                    f"accumulate={self.accumulate} needs a loader with a length, to know its last step: {error}"
                ) from error

    def is_full(self) -> bool:
        return self.max_steps is not None and self.trainer.place.step >= self.max_steps

    def train_epoch(self, watch: StopWatch) -> int:
        """Train to the end of the epoch or of ``max_steps``; returns the signal that stopped it earlier, or 0."""
        trainer, place = self.trainer, self.trainer.place
        taken = self.accumulate if self.order is None else self.order.layout.window
        left_count = self._steps_left()
        end = None if left_count is None else place.step + left_count
        checked, next_check = place.step, place.step + 1
        next_save = self._next_save(place.step)
        self.epoch_ended = False
        for loss in self._steps(self._begin_epoch()):
            place.step += 1
            place.samples += taken
            for listener in self._listeners:
                listener(trainer, loss)
            if place.step >= next_save:
                self.save()
                next_save = self._next_save(place.step)
            if place.step >= next_check:
                signal_number, apart = watch.check(place.step - checked)
                checked, next_check = place.step, place.step + apart
                if signal_number:
                    return signal_number
            if self.is_full():
                if place.step != end:
                    return 0
                break
        place.epoch += 1
        place.samples = 0
        self.epoch_ended = True
        return 0

    def save(self) -> None:
        """Save this step, unless it is saved or there is nowhere to save. Raises errors of earlier saves."""
        trainer, step = self.trainer, self.trainer.place.step
        if self.writer is None or self._saved_step == step:
            return
        self.settle()
        self._saved_step = step
        try:
            self.writer.save(
                step=step,
                trees=trainer._trees(),
                state=trainer._state(self.order, self.accumulate),
                private={"generators": read_generators(), "epoch_generators": self._epoch_generators},
                own_trees={name: part.state_dict() for name, part in trainer._own_parts().items()},
            )
        except CheckpointError as error:
            self._bear(error)

    def settle(self) -> None:
        """Wait for the save in progress."""
        if self.writer is None:
            return
        try:
            self.writer.wait()
        except CheckpointError as error:
            self._bear(error)

    def _bear(self, error: CheckpointError) -> None:
        assert self.trainer.checkpoints is not None
        if self.trainer.checkpoints.on_error == "stop":
            raise error
        warnings.warn(str(error), stacklevel=2)

    def _next_save(self, step: int) -> int:
        return _NEVER if self.writer is None or self._every is None else (step // self._every + 1) * self._every

    def _steps_left(self) -> int | None:
        """In this epoch, including the smaller last step; None where only the loader's end will show."""
        place = self.trainer.place
        if self.order is not None:
            layout = self.order.layout
            return layout.full_steps(place.samples) + (1 if layout.rest(place.samples) else 0)
        if self.accumulate == 1:
            return None
        return max(0, -(-(len(self.loader) - place.samples) // self.accumulate))

    def _begin_epoch(self) -> Iterator[Any]:
        """The epoch's batches from the current position of training, with every generator in its state there."""
        place, found, self._found = self.trainer.place, self._found, None
        private = None if found is None else found.private
        same_ranks = found is not None and found.world_size == self.trainer.ranks.world_size
        if found is not None and (private is None or not same_ranks):
            seed_generators(hash((self.trainer.seed, place.step, self.trainer.ranks.rank)) % 2**63)
            private = None
        if self.order is not None:
            self.order.set_position(place.epoch, place.samples)
            self.loader.generator.manual_seed(self.order.pass_seed)
            batches = iter(self.loader)
        else:
            if private is not None and place.samples:
                restore_generators(private["epoch_generators"])
            elif private is not None:
                restore_generators(private["generators"])
            self._epoch_generators = read_generators()
            if hasattr(getattr(self.loader, "sampler", None), "set_epoch"):
                self.loader.sampler.set_epoch(place.epoch)
            batches = iter(self.loader)
            for _ in range(place.samples):  # the only way to come to the same place in an order that is not ours
                next(batches, None)
        if private is not None and (self.order is not None or place.samples):
            restore_generators(private["generators"])
        return cast(Iterator[Any], batches)

    def _steps(self, batches: Iterator[Any]) -> Iterator[torch.Tensor]:
        """Make the epoch's steps; yields the loss of each. The one hot loop."""
        trainer = self.trainer
        model, optimizer, scheduler, scaler = trainer.model, trainer.optimizer, trainer.scheduler, trainer.scaler
        compute, clip_norm = trainer._step, trainer.clip_norm
        parameters = [one for group in optimizer.param_groups for one in group["params"]] if clip_norm else []
        # On a CPU gradients are freed just before backward, which takes their warm memory again: 11 % less CPU time at
        # steps of 24 ms (n = 24 pairs). An accelerator's allocator keeps its memory, and forward needs more of it.
        frees_late = trainer.ranks.device.type == "cpu"
        after_step = trainer._applier.after_step if trainer._applier.step_watchers else None
        whole, rest = self._weights()
        left_count = self._steps_left()
        for index in itertools.count() if left_count is None else range(left_count):
            weights = rest if rest and index + 1 == left_count else whole
            shown: Any = None
            for micro, weight in enumerate(weights):
                batch = next(batches, _END)
                if batch is _END:
                    if micro == 0 and left_count is None:
                        return
                    raise UsageError(f"the loader ended before its stated length ({len(self.loader)})")
                batch = trainer._to_device(batch)
                if trainer.split > 1 and trainer._taken:
                    trainer._check_split(batch)
                for part, share, is_last in self._parts(batch, is_whole=weights is whole):
                    with nullcontext() if is_last and micro + 1 == len(weights) else without_exchange(model):
                        loss = compute(model, part)
                        if weight * share != 1.0:
                            loss = loss * (weight * share)
                        if frees_late and shown is None:
                            optimizer.zero_grad()
                        (loss if scaler is None else scaler.scale(loss)).backward()
                    shown = loss.detach() if shown is None else shown + loss.detach()
            if clip_norm is not None:
                if scaler is not None:
                    scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(parameters, clip_norm)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            if not frees_late:
                optimizer.zero_grad()
            if scheduler is not None:
                scheduler.step()
            if after_step is not None:
                after_step()
            yield shown

    def _parts(self, batch: Any, *, is_whole: bool) -> Iterable[tuple[Any, float, bool]]:
        """The parts of a batch (technique `accumulation`), each with its share of the samples and whether it is last.

        In the smaller last step, every rank has the same number of parts, or their exchanges would not match.
        """
        count = self.trainer.split
        if count > 1 and self.order is not None and not is_whole:
            layout = self.order.layout
            count = min(count, layout.least_part(layout.rest(self.trainer.place.samples)))
        if count == 1:
            return ((batch, 1.0, True),)
        return ((one.batch, one.weight, one.is_last) for one in micro_batches(self.trainer.model, batch, count))

    def _weights(self) -> tuple[list[float], list[float]]:
        """The weight of each micro-batch's mean loss: in all steps, and in the smaller last one (may be empty).

        DistributedDataParallel divides by the number of ranks; the weights make up for a rank's share of the samples.
        """
        whole = [1.0 / self.accumulate] * self.accumulate
        start = self.trainer.place.samples
        if self.order is None:
            rest = (len(self.loader) - start) % self.accumulate if self.accumulate > 1 else 0
            return whole, [1.0 / rest] * rest if rest else []
        layout = self.order.layout
        rest = layout.rest(start)
        return whole, [count * layout.world_size / rest for _, count in layout.rest_parts(rest)] if rest else []


_END = object()
_NEVER = 1 << 62


def _choose(precision: str, accumulate: int, strategy: Strategy | str | Path | None) -> tuple[Strategy, int, int]:
    """The strategy with the shorthands in it, the batches of a step, and the parts that each of them is split into."""
    if precision not in ("fp32", *_PRECISIONS):
        raise UsageError(f"precision={precision!r}: write 'fp32', {', '.join(map(repr, _PRECISIONS))}")
    if not isinstance(accumulate, int) or isinstance(accumulate, bool) or accumulate < 1:
        raise UsageError(f"accumulate={accumulate!r}: write the number of batches per step, at least 1")
    source = "strategy" if strategy is None or isinstance(strategy, Strategy) else str(strategy)
    chosen = Strategy() if strategy is None else strategy if isinstance(strategy, Strategy) else load_strategy(strategy)
    if precision != "fp32":
        chosen = chain(chosen, Strategy(choices=(Choice(technique=_PRECISIONS[precision]),)), name=chosen.name)
    check_strategy(chosen, TECHNIQUES, source=source)
    named = chosen.get(_ACCUMULATION)
    if named is None:
        return chosen, accumulate, 1
    count = settings_of(TECHNIQUES[_ACCUMULATION], named, source=source)["micro_batches"]
    left = Strategy(choices=tuple(one for one in chosen.choices if one is not named), name=chosen.name)
    return left, accumulate, cast(int, count)


def _record_of(choice: Choice, status: str, detail: str, numerics: str | None = None) -> AppliedTechnique:
    """The outcome of a choice that changed no object."""
    return AppliedTechnique(
        technique=choice.technique,
        settings=dict(choice.settings),
        status=status,
        detail=detail,
        target="Trainer",
        where=None,
        numerics=numerics,
    )


def _check_checkpoints(checkpoints: Checkpoints | None) -> None:
    if checkpoints is None:
        return
    if checkpoints.on_error not in ("stop", "continue"):
        raise UsageError(f"on_error={checkpoints.on_error!r}: write 'stop' or 'continue'")
    for name in ("every_steps", "keep"):
        value = getattr(checkpoints, name)
        if value is not None and (not isinstance(value, int) or value < 1):
            raise UsageError(f"{name}={value!r}: write a whole number above 0, or None")


def _accumulation_to_resume(trainer: Trainer, found: Checkpoint, order: BatchOrder | None) -> int:
    """How many batches make a step, so that a step takes as many samples as before; errors where that is impossible."""
    there = found.state["order"]
    if order is None:
        if there is not None or found.world_size != trainer.ranks.world_size:
            raise CheckpointError(
                f"{found.path} holds a position in {'an order of hotloop' if there else 'a loader of its own order'} "
                f"on {found.world_size} ranks: this loader on {trainer.ranks.world_size} cannot continue there"
            )
        return trainer.accumulate
    here = _identity_of(order)
    if there != here:
        raise CheckpointError(f"{found.path} continues a different data order: {there} there, {here} here")
    layout = order.layout
    asked = layout.batch_size * layout.world_size * trainer.accumulate
    window = int(found.state["window"])
    if asked == window or not trainer.keep_global_batch:
        return trainer.accumulate
    fits, over = divmod(window, layout.batch_size * layout.world_size)
    if over or found.world_size == layout.world_size:
        raise CheckpointError(
            f"{found.path}: a step took {window} samples there, and takes {asked} here ({layout.world_size} ranks x "
            f"{layout.batch_size} x accumulate={trainer.accumulate}): choose a batch size that gives {window}, or "
            "keep_global_batch=False"
        )
    warnings.warn(
        f"{found.world_size} ranks before, {layout.world_size} now: accumulating {fits} batches of "
        f"{layout.batch_size} per step, which keeps {window} samples per step",
        stacklevel=2,
    )
    return fits


def _identity_of(order: BatchOrder) -> dict[str, Any]:
    return {"seed": order.seed, "samples_count": order.layout.samples_count, "shuffle": order.shuffle}


def _is_shuffled(loader: Any) -> bool | None:
    """Whether a loader shuffles; None when its order does not follow from a seed alone."""
    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset) or loader.batch_size is None:
        return None
    sampler = loader.sampler
    if type(sampler) is RandomSampler:
        plain = not sampler.replacement and sampler.num_samples == len(cast(Sized, loader.dataset))
        return True if plain else None
    if type(sampler) is DistributedSampler:
        return bool(sampler.shuffle)
    return False if type(sampler) is SequentialSampler else None


def _with_order(loader: DataLoader[Any], order: BatchOrder) -> DataLoader[Any]:
    """The same loader with its batches in this order. Workers are seeded separately from the process's generators."""
    arguments: dict[str, Any] = {
        name: getattr(loader, name)
        for name in ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "persistent_workers")
    }
    if loader.num_workers > 0:
        arguments["prefetch_factor"] = loader.prefetch_factor
        arguments["multiprocessing_context"] = loader.multiprocessing_context
    return DataLoader(loader.dataset, batch_sampler=order, generator=torch.Generator(), **arguments)


def _is_function(value: Any, method: str) -> bool:
    return callable(value) and (isinstance(value, type) or not hasattr(value, method))
