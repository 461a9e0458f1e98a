"""A declared grid (TOML) -> its configurations, each measured against the first, or why it cannot be.

    schema = "hotloop.matrix/1"

    [[configuration]]                    # the first one is what all others are held against
    name = "float32"

    [[configuration]]
    name = "bfloat16"
    techniques.bf16-autocast = {}

    [[configuration]]
    name = "four ranks"
    ranks = 4

Nothing is searched and nothing is combined: the report covers exactly what was declared. A configuration that changes
nothing in the processes it was to change is ``not applicable``, never a baseline under another name.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec

from hotloop.core.errors import UsageError, suggest_known
from hotloop.core.findings import Numerics
from hotloop.core.measurement import Measurement
from hotloop.core.strategy import Choice, Strategy, StrategyError, strategy_from_mapping
from hotloop.core.techniques import Technique
from hotloop.core.tuning import TrialVerdict

from . import statistics
from .attempt import TuningAttempt
from .quality import ORDER
from .search import BASELINE, Candidate, Check
from .study import Progress, Request, Study, TuneError
from .trials import Bench, Ran
from .tuner import Arm, Campaign, end_arm, run_references, run_rounds

SCHEMA = "hotloop.matrix/1"
PRESET = "preset"
MOST_CONFIGURATIONS = 64
MOST_RANKS = 4096
LEAST_CONFIGURATIONS = 2
OWN_VARIABLES = ("PYTHONPATH", "PYTHONSTARTUP")
"""Variables that hotloop needs to enter the training, in addition to every name that begins with HOTLOOP."""
_RANK_OPTIONS = {
    "torchrun": ("--nproc-per-node", "--nproc_per_node"),
    "torch.distributed.run": ("--nproc-per-node", "--nproc_per_node"),
    "torch.distributed.launch": ("--nproc-per-node", "--nproc_per_node"),
    "accelerate": ("--num_processes", "--num-processes"),
}
_NODE_OPTIONS = ("--nnodes", "--num_machines", "--num-machines")


class GridError(UsageError):
    """A grid is malformed: the text names the file, the configuration, the key and what to write instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One row of a grid. ``why_not`` is set where it is known before any process that it cannot be run."""

    name: str
    strategy: Strategy = field(default_factory=Strategy)
    ranks: int | None = None
    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    numerics: Numerics | None = None
    """Effect of a changed launch on the numbers; None: the techniques', or ``resampled`` for a changed launch."""
    why_not: str = ""

    @property
    def launch(self) -> dict[str, Any]:
        """The differences in the start of the command, as the report shows them."""
        values: dict[str, Any] = {}
        if self.ranks is not None:
            values["ranks"] = self.ranks
        if self.arguments:
            values["arguments"] = list(self.arguments)
        if self.variables:
            values["variables"] = dict(self.variables)
        return values


Word = Annotated[str, msgspec.Meta(pattern=r"\A[^\0]*\Z")]
VariableName = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]{0,200}\Z")]


class _Row(msgspec.Struct, kw_only=True):
    """A configuration as the file has it."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=60)]
    techniques: dict[str, Any] = {}
    ranks: Annotated[int, msgspec.Meta(gt=0, le=MOST_RANKS)] | None = None
    arguments: tuple[Word, ...] = ()
    variables: dict[VariableName, Word] = {}
    numerics: Numerics | None = None


def load_matrix(name: str, check: Check) -> tuple[Configuration, ...]:
    """The configurations of a file, or of the preset. ``check`` refuses impossible strategies. Raises GridError."""
    if name == PRESET:
        return make_preset()
    try:
        text = Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise GridError(
            f"{name}: cannot read the matrix: {error.strerror}; give the path of a TOML file, or --matrix {PRESET}"
        ) from error
    except UnicodeDecodeError as error:
        raise GridError(f"{name}: byte {error.start} is not UTF-8; a matrix must be a TOML file") from error
    return parse_grid(text, check, source=name)


def parse_grid(text: str, check: Check, *, source: str = "matrix") -> tuple[Configuration, ...]:
    """TOML text -> configurations in their order. Raises GridError."""
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise GridError(f"{source}: not TOML: {error}") from error
    if content.get("schema") != SCHEMA:
        raise GridError(f'{source}: schema is {content.get("schema")!r}; the first line must be: schema = "{SCHEMA}"')
    _refuse_unknown(content, ("schema", "configuration"), source)
    rows = content.get("configuration")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise GridError(f"{source}: configuration is {str(rows)[:80]}; write [[configuration]] tables")
    if not LEAST_CONFIGURATIONS <= len(rows) <= MOST_CONFIGURATIONS:
        raise GridError(
            f"{source}: {len(rows)} configurations; write {LEAST_CONFIGURATIONS} to {MOST_CONFIGURATIONS}, the "
            "first of which is the reference"
        )
    found: list[Configuration] = []
    for number, row in enumerate(rows, 1):
        one = _read_row(row, check, f"{source}: configuration {number}")
        if any(one.name == other.name for other in found):
            raise GridError(
                f"{source}: configuration {number}: the name {one.name!r} is already used; give each a different name"
            )
        if found and one.name == BASELINE:
            raise GridError(f"{source}: configuration {number}: only the first one may be called {BASELINE!r}")
        found.append(one)
    return tuple(found)


def _read_row(row: Mapping[str, Any], check: Check, place: str) -> Configuration:
    name = row.get("name")
    if not isinstance(name, str) or not name.isprintable() or name != name.strip():
        raise GridError(f"{place}: name is {str(name)[:80]!r}; write a name of 1 to 60 printable characters")
    place = f"{place} ({name})"
    _refuse_unknown(row, _Row.__struct_fields__, place)
    try:
        one = msgspec.convert(row, _Row)
    except msgspec.ValidationError as error:
        raise GridError(f"{place}: {error}") from error
    for variable in one.variables:
        if variable in OWN_VARIABLES or variable.startswith("HOTLOOP"):
            raise GridError(
                f"{place}: variables.{variable}: reserved: hotloop sets it to load itself into the training process; "
                "remove it"
            )
    try:
        strategy = strategy_from_mapping(
            {"schema": "hotloop.strategy/1", "name": name, "techniques": one.techniques}, source=place
        )
    except StrategyError as error:
        raise GridError(str(error)) from error
    try:
        check(strategy)
    except StrategyError as error:
        raise GridError(f"{place}: {error}") from error
    return Configuration(
        name=name,
        strategy=strategy,
        ranks=one.ranks,
        arguments=one.arguments,
        variables=one.variables,
        numerics=one.numerics,
    )


def _refuse_unknown(content: Mapping[str, Any], known: Sequence[str], place: str) -> None:
    for key in content:
        if key not in known:
            raise GridError(f"{place}: unknown key {key[:80]!r}{suggest_known(key, known)}")


# -- the preset --------------------------------------------------------------------------------------------------------


def make_preset() -> tuple[Configuration, ...]:
    """The grid that is asked for most: precision, accumulation, and what is cut over the ranks.

    The first one changes nothing: the observation shows the command as it is.
    """
    bf16 = Choice(technique="bf16-autocast")
    rows: dict[str, tuple[Choice, ...]] = {
        BASELINE: (),
        "bf16": (bf16,),
        "bf16 + accumulation": (bf16, Choice(technique="accumulation", settings={"micro_batches": 2})),
        "fsdp2": (Choice(technique="fsdp2"),),
        "zero-1": (Choice(technique="zero-optimizer"),),
    }
    return tuple(
        Configuration(name=name, strategy=Strategy(name=name, choices=choices)) for name, choices in rows.items()
    )


# -- starting the command ----------------------------------------------------------------------------------------------


def change_command(command: Sequence[str], configuration: Configuration) -> tuple[tuple[str, ...], str]:
    """The words that start this configuration, and why it cannot be started (empty when it can).

    Arguments are appended: if an option is given twice, argparse and click take the last one.

    >>> change_command(("torchrun", "--nproc-per-node=2", "t.py"), Configuration(name="a", ranks=4))
    (('torchrun', '--nproc-per-node=4', 't.py'), '')
    """
    words = list(command)
    if configuration.ranks is not None:
        why_not = _set_ranks(words, configuration.ranks)
        if why_not:
            return tuple(command), why_not
    return (*words, *configuration.arguments), ""


def _set_ranks(words: list[str], ranks: int) -> str:
    """Put the number into the launcher's option; returns why that cannot be done."""
    place = _find_launcher(words)
    if place is None:
        return (
            f"ranks = {ranks}: the command has no launcher that sets the number of ranks; use: -- torchrun "
            "--nproc-per-node N train.py"
        )
    name = os.path.basename(words[place])
    end = next((i for i in range(place + 1, len(words)) if words[i].endswith(".py") or words[i] == "-m"), len(words))
    for option in _NODE_OPTIONS:
        for index in range(place + 1, end):
            key, _, value = words[index].partition("=")
            value = value or (words[index + 1] if index + 1 < end else "")
            if key == option and value not in ("1", "1:1"):
                return f"ranks = {ranks}: the command spans {value} nodes; ranks can only be set for one node"
    options = _RANK_OPTIONS[name]
    for index in range(place + 1, end):
        key, equals, _ = words[index].partition("=")
        if key in options:
            if equals:
                words[index] = f"{key}={ranks}"
            elif index + 1 < len(words):
                words[index + 1] = str(ranks)
            return ""
    after = place + 2 if name == "accelerate" else place + 1
    words[after:after] = [options[0], str(ranks)]
    return ""


def _find_launcher(words: Sequence[str]) -> int | None:
    for index, word in enumerate(words):
        name = os.path.basename(word)
        if name == "accelerate":
            return index if words[index + 1 : index + 2] == ["launch"] else None
        if name in _RANK_OPTIONS:
            return index
        if word.endswith(".py"):
            return None
    return None


def declare_candidates(
    configurations: Sequence[Configuration], techniques: Mapping[str, Technique]
) -> tuple[Candidate, ...]:
    """Every configuration but the first, which all others are held against, as a candidate."""
    return tuple(
        Candidate(
            id=one.name,
            strategy=one.strategy,
            forecast=None,
            rules=(),
            numerics=_numerics_of(one, techniques),
            why_not=one.why_not,
            least_numerics=_launch_numerics(one),
        )
        for one in configurations[1:]
    )


def measure_declared(
    campaign: Campaign,
    candidates: Sequence[Candidate],
    configurations: Sequence[Configuration],
    observed: Sequence[Measurement],
) -> None:
    """Pairs of processes for every configuration until each is decided or the budget is used up."""
    rows = {one.name: one for one in configurations}
    campaign.keeps_all = True
    campaign.arms = [Arm(candidate=one) for one in candidates]
    for arm in campaign.arms:
        if arm.candidate.why_not:
            end_arm(campaign, arm, TrialVerdict.NOT_APPLICABLE, arm.candidate.why_not)
        elif _changes_work(rows[arm.candidate.id]) and not all(map(_counts_work, observed)):
            end_arm(campaign, arm, TrialVerdict.CANNOT_TELL, UNCOUNTED)
    active = [arm for arm in campaign.arms if arm.ended is None]
    if active:
        campaign.level = statistics.DECISION_LEVEL / len(active)
    run_references(campaign, observed)
    try:
        run_rounds(campaign, active, campaign.budget.search_until_s)
    finally:
        for arm in active:
            _have_last_word(campaign, arm, rows[arm.candidate.id])


UNCOUNTED = (
    "the number of samples per step is unknown and this configuration may change it: steps of different size "
    "cannot be compared"
)


def _have_last_word(campaign: Campaign, arm: Arm, row: Configuration) -> None:
    """Cases that the search would reject, in the words of a grid; and comparisons that would not be fair."""
    if arm.ended is not None:
        if arm.unapplied is not None and arm.quality is None:
            reason = arm.unapplied.describe(implied=TrialVerdict.NOT_APPLICABLE.value)
            arm.ended = replace(arm.ended, verdict=TrialVerdict.NOT_APPLICABLE, reason=reason)
        return
    if not arm.own:
        return
    last = arm.own[-1]
    if row.ranks is not None and last.rank_count is not None and last.rank_count != row.ranks:
        why = f"{row.ranks} ranks were requested, but {last.rank_count} trained"
        end_arm(campaign, arm, TrialVerdict.NOT_APPLICABLE, why)
    elif row.ranks not in (None, 1) and last.exchanges is False:
        why = (
            f"no communication between its {row.ranks} ranks was observed: they may train {row.ranks} independent "
            "models"
        )
        end_arm(campaign, arm, TrialVerdict.CANNOT_TELL, why)
    elif _changes_work(row) and not all(map(_counts_work, arm.own)):
        end_arm(campaign, arm, TrialVerdict.CANNOT_TELL, UNCOUNTED)


def _numerics_of(row: Configuration, techniques: Mapping[str, Technique]) -> Numerics:
    known = [techniques[choice.technique].numerics for choice in row.strategy.choices]
    launch = _launch_numerics(row)
    return max([*known, launch] if launch else known, key=ORDER.index, default=Numerics.EXACT)


def _launch_numerics(row: Configuration) -> Numerics | None:
    """Other ranks or arguments: other batches may meet other weights; other variables (threads): sums in another order.

    Unless the grid says what they do.
    """
    if row.numerics is not None or not row.launch:
        return row.numerics
    return Numerics.RESAMPLED if _changes_work(row) else Numerics.REORDERED


def _changes_work(row: Configuration) -> bool:
    return row.ranks is not None or bool(row.arguments)


def _counts_work(one: Measurement) -> bool:
    return bool(one.samples_per_step) or bool(one.tokens_per_step)


def begin_with_first(rows: Sequence[Configuration], request: Request, progress: Progress) -> Request:
    """The request for the first configuration, which all others are held against. Raises TuneError."""
    first = rows[0]
    command, why_not = change_command(request.command, first)
    if why_not:
        raise TuneError(f"the first configuration ({first.name}) cannot be started: {why_not}")
    progress.reference = first.name
    progress.launches = {row.name: row.launch for row in rows if row.launch}
    return replace(
        request,
        command=command,
        variables={**request.variables, **first.variables},
    )


def try_rows(rows: tuple[Configuration, ...], request: Request, progress: Progress, attempt: TuningAttempt) -> None:
    """Measure the other configurations against the first one. Raises TuneError where the first does not apply."""
    campaign, study, first = attempt.campaign, attempt.study, rows[0]
    if attempt.observed.form:
        progress.reference = f"{first.name} ({attempt.observed.form})"
    why_not = _not_applied(first, attempt)
    if why_not:
        raise TuneError(
            f"the first configuration ({first.name}) is the reference for all others, but it cannot be applied: "
            f"{why_not}"
        )
    known: dict[str, Configuration] = {}
    benches: dict[str, Bench] = {}
    for row in rows:
        command, cannot = change_command(request.command, row)
        known[row.name] = replace(row, why_not=row.why_not or cannot)
        one = replace(request, command=command, variables={**request.variables, **row.variables})
        benches[row.name] = replace(study.bench, command=command, environment=attempt.attach(one))
    campaign.run = partial(_run_row, study, known, benches, first.name)
    candidates = declare_candidates(tuple(known.values()), attempt.techniques)
    count = sum(not one.why_not for one in candidates)
    campaign.emit(f"{count} configurations to compare with {first.name}, {study.limits.steps} steps in each process")
    measure_declared(campaign, candidates, tuple(known.values()), [attempt.observed])


def _run_row(
    study: Study,
    rows: Mapping[str, Configuration],
    benches: Mapping[str, Bench],
    first: str,
    strategy: Strategy,
    number: int,
) -> Ran:
    """One process of a configuration, which its strategy names; that of the first one where it names none."""
    row = rows[strategy.name or first]
    bench = benches[row.name]
    key = f"configuration-{list(rows).index(row.name)}"
    return study.run(key, bench, row.strategy, number)


def _not_applied(row: Configuration, attempt: TuningAttempt) -> str:
    for choice in row.strategy.choices:
        records = [one for one in attempt.observed.applied if one.technique == choice.technique]
        if not any(one.is_applied for one in records):
            return next(
                (f"{choice.technique}: {one.detail}" for one in records), f"{choice.technique} found nothing to change"
            )
    return ""
