"""Technique: one optimization in one file, which changes a training's objects if it can prove that it may.

A technique file (``apply/techniques/<name>.py``) defines one subclass of Technique. Importing it must not import torch:
hooks do that themselves, because the command line knows every technique without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, Literal, Protocol

from .acts import Act
from .analysis import Analysis
from .findings import Effort, Numerics, Safety, Saving, Value, saving_within
from .sources import NoSource, Source
from .strategy import Strategy


class Stage(IntEnum):
    """When a technique acts on an object that several of them change: lower stages first.

    A model is cast and given its recomputation before it is compiled; wrappers for several ranks come where torch wants
    them (DDP first, then compile: Dynamo splits at DDP's buckets; FSDP shards the compiled model).
    """

    RUNTIME = 0
    LOADER = 10
    PRECISION = 30
    ACTIVATIONS = 50
    PARALLEL = 60
    COMPILE = 70
    OPTIMIZER = 80
    LOOP = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A key of a technique's table. ``default`` None means that hotloop chooses (``help`` says how)."""

    name: str
    kind: type[bool] | type[int] | type[float] | type[str]
    default: Value
    help: str
    choices: tuple[Value, ...] = ()
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The technique changed its object: ``values`` are what it set, by name; ``undo`` reverts it.

    ``text`` describes the change in a few words, with names of values in braces: 'num_workers={num_workers}'.
    ``numerics`` is set if the change is better than the technique's own class (no random draw in the data set).
    ``replacement`` is the new object if it could not be changed in place (by API and in the Trainer only).
    ``explicit`` is the script's own setting that this overrides, as source: 'fused=False'.
    """

    text: str
    values: Mapping[str, Value] = field(default_factory=dict)
    numerics: Numerics | None = None
    undo: Callable[[], None] | None = None
    replacement: Any = None
    explicit: str | None = None

    @property
    def detail(self) -> str:
        """The text with its values, as a report shows it; the bare text if they do not fit, since nothing here may
        raise into a training."""
        try:
            return self.text.format_map(self.values)
        except (LookupError, ValueError, TypeError, AttributeError):
            return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class NotApplicable:
    """The technique left its object as it was. ``why`` is shown to the user: the fact, with its value.

    ``explicit`` is set if only a setting of the script's own prevents the change, as source ('fused=False'): with
    ``override``, the technique would replace it.
    """

    why: str
    explicit: str | None = None


Effect = Applied | NotApplicable | None
"""None: the technique does not deal with this object (a second loader for validation, a loss without parameters)."""


@dataclass(slots=True, kw_only=True)
class Call:
    """A call of a torch function that is about to be made. A technique changes what is called, and with what."""

    name: str
    """As in ``Technique.functions``."""
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    caller: str = ""
    """Name of the module that makes the call."""


CopyChange = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]
"""``(tensor, args, kwargs)`` of a copy that is about to be made; it may add to kwargs. It runs at every copy."""


class Context(Protocol):
    """What a technique may know about the process that it acts in."""

    strategy: Strategy
    from_outside: bool
    """True when an unmodified script is being changed: objects are changed in place or not at all."""
    rank: int
    world_size: int
    local_world_size: int
    cores: int
    """Cores of this process: min(affinity, cgroup quota), shared by all ranks of the host."""

    def memory(self, technique: str) -> dict[str, Any]:
        """A dict of this process in which the technique keeps what it must remember between its hooks."""
        ...

    def optimizers(self) -> list[Any]:
        """Optimizers that were built so far and still exist."""
        ...

    def models(self) -> list[Any]:
        """Outermost modules that were called with gradients so far and still exist (by API: the one that was given)."""
        ...

    def report(self, technique: str, effect: Effect) -> None:
        """Report the result of a technique after its hook returned: it acted at a later step, or was reverted."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryForm:
    """A form of a technique that saves memory, as a tuning tries it; ``label`` distinguishes it from the others."""

    label: str = ""
    settings: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySaving:
    """Declares that a technique saves memory: ``what``, in a few words; ``needs`` is what the training must have."""

    what: str
    forms: tuple[MemoryForm, ...] = (MemoryForm(),)
    needs: Literal["ranks", "an accelerator"] | None = None
    turn: int = 9
    """Lower ones are tried first."""


class Technique(Act):
    """One optimization. The class docstring is its manual, with the headings of ``MANUAL_HEADINGS``.

    A hook returns an Effect. It checks first and changes last; an exception is recorded, and the training goes on.
    Objects of the training never keep a reference to the technique that would change how they pickle.
    """

    MANUAL_HEADINGS: ClassVar[tuple[str, ...]] = ("What it does", "When it helps", "When it does not", "Numerics")

    is_technique: ClassVar[bool] = True
    effort: Effort = "easy"
    safety = Safety.ASK
    stage: ClassVar[Stage]
    treats: ClassVar[tuple[str, ...]] = ()
    """Ids of the rules whose fault it fixes."""
    acts_on_start: ClassVar[bool] = False
    """Whether it saves time in the first steps or in all steps depending on the shapes: a tuning then compares all
    steps of its trials, whatever the first look showed."""
    settings: ClassVar[tuple[Setting, ...]] = ()
    conflicts: ClassVar[tuple[str, ...]] = ()
    """Ids of the techniques that must not be chosen together with it."""
    source: ClassVar[Source] = NoSource()
    """The code of a script that does the same: patches write it, and other libraries' configurations replace it."""
    memory: ClassVar[MemorySaving | None] = None

    is_probed: ClassVar[bool] = False
    """Whether a probe measures on the training's own operators what it would save."""

    def why_no_source(self, values: Mapping[str, Value]) -> str | None:
        """Why ``source`` cannot express what was done with these values of Applied; None if it can."""
        return None

    def why_norms_differ(self, settings: Mapping[str, Value]) -> str:
        """Why gradients differ in size from the unchanged training although it trains alike; empty if they do not, so
        that their norms show errors. If this returns a reason, the loss alone judges the technique."""
        return ""

    def check(self, settings: Mapping[str, Value], strategy: Strategy) -> str | None:
        """The problem with settings whose types and ranges are right, naming the key; None if there is none."""
        return None

    def forecast(self, analysis: Analysis, settings: Mapping[str, Value]) -> Saving | None:
        """What it would save on this training, as fractions of the time per unit; None if nothing is known."""
        probed = analysis.lead.forecasts.get(self.id) if self.is_probed else None
        if probed is None:
            return None
        ratios = (probed.saving_low_ratio, probed.saving_mid_ratio, probed.saving_high_ratio)
        return saving_within(1.0, *ratios, probed.basis)

    functions: ClassVar[tuple[str, ...]] = ()
    """Functions whose calls ``change_call`` may change in an unmodified script, as 'module:dotted.path': of torch, or
    of a library that the script may import."""
    needs_library: ClassVar[bool] = False
    """Whether an unmodified script cannot be changed this way from outside, unless it trains with hotloop's Trainer,
    which adopts the choice."""

    # -- hooks, in the order in which a training meets them ------------------------------------------------------------

    def set_environment(
        self, settings: Mapping[str, Value], environment: Mapping[str, str]
    ) -> tuple[Mapping[str, str], Effect]:
        """Variables to set before the command starts. The user's own settings stay. Runs without torch."""
        return {}, None

    def start(self, settings: Mapping[str, Value], context: Context) -> Effect:
        """torch has been imported, nothing has been built yet."""
        return None

    def change_loader(self, loader: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        """A DataLoader was built; no iterator of it exists yet."""
        return None

    def change_ddp(self, arguments: dict[str, Any], settings: Mapping[str, Value], context: Context) -> Effect:
        """DistributedDataParallel is about to be built with these arguments (``module`` too); change the dict."""
        return None

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        """An outermost module with parameters is about to make its first forward with gradients.

        It may be a DistributedDataParallel (its own module inside). It is changed in place; by API, an
        ``Applied.replacement`` may replace it.
        """
        return None

    def change_optimizer(self, optimizer: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        """An optimizer is about to be used for the first time: no state exists unless a checkpoint was loaded."""
        return None

    def change_copies(self, settings: Mapping[str, Value], context: Context) -> CopyChange | None:
        """A function that sees every ``to`` and ``cuda`` of a CPU tensor once an accelerator is in use."""
        return None

    def change_scaler(self, scaler: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        """A GradScaler was built."""
        return None

    def change_call(self, call: Call, settings: Mapping[str, Value], context: Context) -> Effect:
        """The script calls one of ``functions``, outside of compiled code. Runs at every call, so it must be fast.

        By API, nothing is patched, so this hook does not run.
        """
        return None

    def after_step(self, context: Context) -> None:
        """After every step; only for techniques that ``watch_steps``."""

    watch_steps: ClassVar[bool] = False


def has_hook(technique: Technique, hook: str) -> bool:
    """Whether the technique's class defines this hook itself."""
    return getattr(type(technique), hook) is not getattr(Technique, hook)
