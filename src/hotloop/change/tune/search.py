"""Findings -> candidates worth a trial, best forecast first; and in what order the processes of a round run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hotloop.core.applied import AppliedTechnique
from hotloop.core.findings import Basis, Finding, Numerics, Safety, Saving, Severity, Value, Where, severity_of
from hotloop.core.strategy import Choice, Strategy, StrategyError, chain
from hotloop.core.techniques import Stage, Technique

from .quality import ORDER

BASELINE = "baseline"
LEAST_FORECAST_RATIO = 0.005
"""Candidates whose forecast is at most this are not worth a trial."""
BETWEEN_BASELINES = 2
"""Number of candidates that run between two baseline processes; each is compared with one of the two."""
_WEIGHT = {Basis.MEASURED: 1.0, Basis.SIMULATED: 0.9, Basis.RULE_OF_THUMB: 0.5}

Check = Callable[[Strategy], Strategy]
"""Returns the strategy, or raises StrategyError: conflicts, unknown keys, impossible values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A strategy to try. ``why_not`` is set where it is not tried at all."""

    id: str
    strategy: Strategy
    forecast: Saving | None
    rules: tuple[str, ...]
    numerics: Numerics
    why_not: str = ""
    judged: tuple[str, ...] = ()
    """Lines (``file:line``) that the rule which prescribes it judged."""
    judges_process: bool = False
    """That rule judged a setting of the whole process, wherever the script makes it."""
    one_time_ratio: float | None = None
    """Share of the observed run or of its steps that its findings say is lost, where each start may pay it once: then
    trials compare all of their steps. None where a finding is about every step."""

    @property
    def is_one_time(self) -> bool:
        """Whether it treats what each start may pay once."""
        return self.one_time_ratio is not None


def find_candidates(
    findings: Iterable[Finding], techniques: Mapping[str, Technique], check: Check, root: Path = Path()
) -> tuple[Candidate, ...]:
    """One candidate per technique that a finding prescribes or that treats its rule, in the order of ``urgency``.

    Lines of files below ``root`` are named from there.
    """
    found: dict[str, Candidate] = {}
    for finding in findings:
        named = () if finding.fix is None else (finding.fix.technique,)
        # What conflicts with the prescribed technique is another way to do the same.
        rivals = _rivals(named, techniques)
        others = tuple(t.id for t in techniques.values() if finding.rule in t.treats and t.id not in (*named, *rivals))
        for technique_id in (*named, *others):
            technique = techniques.get(technique_id)
            if technique is None:
                continue
            is_named = technique_id in named
            settings = finding.fix.settings if finding.fix is not None and is_named else {}
            # The finding's forecast is for its own fix: another treatment of the rule saves at most what is lost.
            saving = finding.saving if is_named else None
            candidate = _make_candidate(technique.id, technique, settings, saving, finding.rule, check)
            if is_named:
                places = tuple(_name_line(place, root) for place in finding.where)
                candidate = replace(candidate, judged=places, judges_process=technique.stage is Stage.RUNTIME)
            if finding.base == "run" or technique.acts_on_start:
                candidate = replace(candidate, one_time_ratio=finding.cost_ratio or 0.0)
            before = found.get(candidate.id)
            found[candidate.id] = candidate if before is None else _merge(before, candidate)
    return tuple(sorted(found.values(), key=urgency))


def _name_line(place: Where, root: Path) -> str:
    path = Path(place.file)
    return f"{path.relative_to(root) if path.is_relative_to(root) else path}:{place.line}"


def override_explicit(candidate: Candidate, applied: Sequence[AppliedTechnique]) -> Candidate | None:
    """The candidate with permission to override a setting of the script's own that blocked it in a process.

    None where nothing did, or where no rule has judged that very line.
    """
    choice = candidate.strategy.choices[0] if len(candidate.strategy.choices) == 1 else None
    if choice is None or choice.override:
        return None
    refused = [one for one in applied if one.explicit and not one.is_applied]
    places = tuple(place for place in candidate.judged if any(_is_at(place, one.where) for one in refused))
    if not refused or not (places or candidate.judges_process):
        return None
    where = () if candidate.judges_process else places
    return replace(candidate, strategy=Strategy(choices=(replace(choice, override=True, where=where),)))


def _is_at(place: str, where: Where | None) -> bool:
    file, _, line = place.rpartition(":")
    return where is not None and str(where.line) == line and f"/{where.file}".endswith(f"/{file}")


def _rivals(named: Sequence[str], techniques: Mapping[str, Technique]) -> set[str]:
    mine = {other for one in named if one in techniques for other in techniques[one].conflicts}
    return mine | {one.id for one in techniques.values() if set(one.conflicts) & set(named)}


def combine(parts: Sequence[Candidate], check: Check) -> Candidate | None:
    """As many of the parts as go together, the first ones before later ones; None when that is fewer than two."""
    taken: list[Candidate] = []
    for part in parts:
        ids = {choice.technique for one in taken for choice in one.strategy.choices}
        if any(choice.technique in ids for choice in part.strategy.choices):
            continue  # another form of a taken one: chained, the later settings would apply silently
        try:
            check(chain(*(one.strategy for one in (*taken, part))))
        except StrategyError:
            continue
        taken.append(part)
    if len(taken) < 2:
        return None
    return Candidate(
        id=" + ".join(sorted(one.id for one in taken)),
        strategy=chain(*(one.strategy for one in taken)),
        forecast=None,
        rules=tuple(dict.fromkeys(rule for one in taken for rule in one.rules)),
        numerics=max((one.numerics for one in taken), key=ORDER.index),
    )


def schedule_round(candidates: Sequence[str], number: int) -> tuple[tuple[str, ...], dict[str, int]]:
    """The arms of one round in running order, and for each candidate the position of the baseline to compare it with.

    Every second round runs backwards, so that a slow drift of the machine cancels over two rounds.

    >>> schedule_round(("a", "b"), 0)
    (('baseline', 'a', 'b', 'baseline'), {'a': 0, 'b': 3})
    >>> schedule_round(("a",), 1)
    (('a', 'baseline'), {'a': 1})
    """
    arms: list[str] = []
    beside: dict[str, int] = {}
    for start in range(0, len(candidates), BETWEEN_BASELINES):
        group = candidates[start : start + BETWEEN_BASELINES]
        if start == 0:
            arms.append(BASELINE)
        before = len(arms) - 1
        arms.extend(group)
        beside[group[0]] = before
        if len(group) > 1:
            beside[group[1]] = len(arms)
            arms.append(BASELINE)
    if number % 2:
        arms.reverse()
        beside = {name: len(arms) - 1 - place for name, place in beside.items()}
    return tuple(arms), beside


def keep_affordable(ratios: Mapping[str, float], costs_s: Mapping[str, float], time_s: float) -> tuple[str, ...]:
    """The ids with the largest speedups so far for which the time is enough, at least one.

    Where it is not enough for the best one, the best one continues anyway, unless it is slow next to the others.

    >>> keep_affordable({"a": 1.1, "slow": 1.3, "b": 1.2}, {"a": 10, "slow": 90, "b": 10}, 60)
    ('b', 'a')
    >>> keep_affordable({"a": 1.2, "b": 0.9}, {"a": 11, "b": 10}, 10)
    ('a',)
    """
    cheapest_s = min(costs_s.values())
    kept: list[str] = []
    for name in sorted(ratios, key=lambda one: (-ratios[one], one)):
        if costs_s[name] <= time_s or (not kept and costs_s[name] <= 2 * cheapest_s):
            kept.append(name)
            time_s -= costs_s[name]
    return tuple(kept)


def _make_candidate(
    name: str,
    technique: Technique,
    settings: Mapping[str, Value],
    saving: Saving | None,
    rule: str,
    check: Check,
) -> Candidate:
    known = {setting.name for setting in technique.settings}
    kept = {key: value for key, value in settings.items() if key in known and value is not None}
    strategy = Strategy(choices=(Choice(technique=technique.id, settings=kept),))
    why_not = ""
    if technique.safety is Safety.SHOW:
        why_not = "not tried: only you can decide to apply it"
    elif saving is not None and saving.high_ratio <= LEAST_FORECAST_RATIO:
        why_not = f"not tried: the forecast saving is at most {saving.high_ratio:.1%} of the time"
    else:
        try:
            check(strategy)
        except StrategyError as error:
            why_not = str(error)
    return Candidate(
        id=name,
        strategy=strategy,
        forecast=saving,
        rules=(rule,),
        numerics=technique.numerics,
        why_not=why_not,
    )


def _merge(a: Candidate, b: Candidate) -> Candidate:
    """Two findings ask for one technique: the one that can be tried, with the better forecast."""
    first, second = sorted((a, b), key=lambda one: (bool(one.why_not), urgency(one)))
    return replace(
        first,
        forecast=first.forecast if first.forecast is not None else second.forecast,
        rules=tuple(dict.fromkeys((*a.rules, *b.rules))),
        judged=tuple(dict.fromkeys((*a.judged, *b.judged))),
        judges_process=a.judges_process or b.judges_process,
        one_time_ratio=None
        if a.one_time_ratio is None or b.one_time_ratio is None
        else max(a.one_time_ratio, b.one_time_ratio),
    )


def promise(candidate: Candidate) -> float:
    """The forecast saving, weighted down by what it rests on; 0 without a forecast.

    A cost paid once per start is used in place of a saving that nobody forecast: how much of it goes away is not known.
    """
    saving = candidate.forecast
    if saving is None:
        return (candidate.one_time_ratio or 0.0) * _WEIGHT[Basis.RULE_OF_THUMB]
    return saving.mid_ratio * _WEIGHT[saving.basis]


def rests_on_evidence(candidate: Candidate) -> bool:
    """Whether its forecast was measured or simulated on this training."""
    return candidate.forecast is not None and candidate.forecast.basis is not Basis.RULE_OF_THUMB


def is_material(candidate: Candidate) -> bool:
    """Whether its forecast is of severity medium or high."""
    return severity_of(candidate.forecast) in (Severity.HIGH, Severity.MEDIUM)


def urgency(candidate: Candidate) -> tuple[bool, bool, float, str]:
    """The order in which candidates are tried: what the report calls medium or high first, then by what it promises."""
    return (
        promise(candidate) == 0 and candidate.forecast is None,
        not is_material(candidate),
        -promise(candidate),
        candidate.id,
    )


RULE = "memory-pressure"
FOR_SPEED = "not tried: it improves speed, but the goal is memory"


def list_memory_candidates(
    candidates: Iterable[Candidate],
    techniques: Mapping[str, Technique],
    check: Check,
    *,
    rank_count: int,
) -> tuple[Candidate, ...]:
    """The candidates of the goal memory: what saves memory, and why the others are not tried.

    Forecasts are of time: none prunes. A candidate that can change nothing here is reported without a process.
    """
    saving = [(one, one.memory) for one in techniques.values() if one.memory is not None]
    found = []
    for technique, memory in sorted(saving, key=lambda pair: pair[1].turn):
        for form in memory.forms:
            name = f"{technique.id} ({form.label})" if form.label else technique.id
            one = _make_candidate(name, technique, form.settings, None, RULE, check)
            if memory.needs == "ranks" and rank_count == 1:
                one = replace(one, why_not="not applicable: there is only one rank")
            found.append(one)
    taken = {one.id for one in found}
    others = [one for one in candidates if one.id not in taken]
    return (*found, *(replace(one, forecast=None, why_not=one.why_not or FOR_SPEED) for one in others))


STEADY_BEHIND = 10
"""Steps that a trial trains after the start that it has to show, so that steady steps can be compared too."""


def least_steps(findings: Iterable[Finding]) -> int:
    """Steps that a trial needs to show the start and some steady steps after it; 0 where nothing is paid once."""
    counts = [finding.evidence.get("steps") for finding in findings if finding.base == "run"]
    first = max((count for count in counts if isinstance(count, int)), default=0)
    return first + STEADY_BEHIND if first else 0
