"""Sampled lines of user code -> what they were doing, and how much of a time field that explains."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from hotloop.core.analysis import Analysis, Line, RankAnalysis
from hotloop.core.findings import Where
from hotloop.core.recording import GAP_FIELDS
from hotloop.judge.diagnose.measured import MATERIAL_RATIO, NOISE_MULTIPLE, share_bounds, threshold_ratio

LOGGING = "logging"
WEIGHTS = "weights"
"""A Python loop over parameters or gradients: hand-written clipping, decay, averaging."""
COLLECTING = "collecting"
"""An explicit garbage collection."""
BATCH = "batch"
"""Reading, tokenizing, indexing or stacking samples."""
IN_PLACE = "in-place"
"""A tensor changed in place: weights or gradients around the optimizer, inputs before the forward."""
BOOKKEEPING = "bookkeeping"
"""What every loop does: zero_grad, schedulers, clocks, library clipping."""
SAVING = "saving"
"""Work around a save and for its sake: fsync, renaming, gathering the state. It counts as the checkpoint's, whatever it
looks like."""
EXCHANGING = "exchanging"
"""What a function that calls collectives does to tensors around them; DDP would do it as part of its exchange."""
VALIDATING = "validating"
"""What the functions that validate do between and after their forwards. It counts as the validation's, whatever it
looks like."""
WAITING = "waiting"
"""A call that blocks until another thread, process or machine delivers something, or until a time is over."""
UNKNOWN = "unknown"

_FINISHING_TEXT = re.compile(
    r"\b(f(data)?sync|sync|flush|close|replace|renames?|move|link|symlink|unlink|remove|rmtree|copy2?|copyfile|makedirs"
    r"|mkdir|open)\("
)
"""Calls that finish a file that was just written."""
_LOGGING_TEXT = re.compile(
    r"(?<![\w.])print\(|\badd_(scalars?|histogram|images?|text|figure|embedding)\b|\blog_(metrics?|dict|artifact|params?)\b"
    r"|\b(wandb|mlflow|tensorboard|logger|logging|comet_ml|neptune)\b|\bwriterows?\(|\.write\(|\bsavefig\b|\bfsync\("
    r"|\.flush\(|\bset_postfix|\bjson\.dumps?\(|\bhist(c|ogram)\w*\(|\bopen\([^)]*['\"][aw]b?\+?['\"]"
    r"|(?<!math)(?<!torch)(?<!np)(?<!numpy)(?<!jnp)\.log\(\s*[^)\s]"
)
_LOGGING_NAME = re.compile(
    r"(^|_)(log|logs|logged|logging|report|reports|print|dump|telemetry|histograms?|summary|summaries|summari[sz]e"
    r"|metrics?|track|stats|statistics|debug|plot|visuali[sz]e|diagnostics?|journal|write|emit|publish)(_|$)",
    re.IGNORECASE,
)
_SAVING_NAME = re.compile(r"(^|_)(save|saves|checkpoint|ckpt|snapshot)(_|$)", re.IGNORECASE)
_LOGGING_LEAF = re.compile(
    r"^(logging|wandb|mlflow|tensorboard|tensorboardX|torch\.utils\.tensorboard|json|csv|matplotlib)\b"
)
_WAITING_LEAF = re.compile(
    r"^(queue|threading|concurrent\.futures|multiprocessing|asyncio|selectors|select|socket|ssl|subprocess)\b"
)
_SLEEP_TEXT = re.compile(r"(?<![\w])(time\.)?sleep\(")
_LIBRARY_CLIP = re.compile(r"\bclip_grad_(norm|value)_\(|\bget_total_norm\(|\bclip_grads_with_norm_\(")
_WEIGHTS_TEXT = re.compile(
    # A call of grad() computes gradients (torch.autograd, torch.func) and does not handle any.
    r"\.grad\b(?!\s*\()|\b(named_)?parameters\(\)|\bparam_groups\b|\bgrads?\b(?!\s*\()"
    # A state alone on its line is walked over next; one that is saved is inside a dict or a call.
    r"|\bstate_dict\(\)\.(items|values)|=\s*[\w.]+\.state_dict\(\)\s*$"
)
_STATE_WALK = re.compile(r"\bstate_dict\(\).*\b(items|values)\(\)|\b(items|values)\(\).*\bstate_dict\(\)")
"""A loop over the entries of a state, recognized by the names of what it calls, in whatever order they are kept."""
_WEIGHTS_NAME = re.compile(
    r"(clip|grad|decay|(^|_)ema(_|$)|polyak|weight_?norm|average_(model|weights|param))", re.IGNORECASE
)
_PURPOSE_NAME = re.compile(r"clip|decay|(^|_)(ema|norm|normali[sz]e)(_|$)", re.IGNORECASE)
_COLLECTING_TEXT = re.compile(r"\bgc\.collect\(|\bgc_collect\(|\bmalloc_trim\b")
_BATCH_TEXT = re.compile(
    r"\b(np|numpy|random|rng)\.|\b(stack|from_numpy|as_tensor|tensor|tensors|pad|pad_sequence|collate\w*|tokeni[sz]e\w*"
    r"|encode\w*|decode\w*|augment\w*|transforms?|resize|crop|flip|normali[sz]e\w*|randint|randperm|choice|shuffle"
    r"|index_select|gather|split|join|read\w*|loads?|fromfile|memmap|open)\(|\bImage\b|\[\s*\w+\s*:\s*\w+"
)
_BATCH_NAME = re.compile(
    r"(batch|sample|token|collate|augment|prepro|preprocess|prepare|transform|encode|decode|load|fetch|read|mask|pad|crop"
    r"|example|feature|item|data|input|shard|chunk|image|text|vocab)",
    re.IGNORECASE,
)
_MOMENT_NAME = re.compile(r"^on_\w+_(start|begin|end)$")
"""The name of a framework's hook shows when it is called (``on_train_batch_end``), not that it prepares batches."""
_BATCH_MAKER_NAME = re.compile(r"(^|_)(mini)?(batch\w*|samples?|collate\w*|augment\w*|prepro\w*)(_|$)", re.IGNORECASE)
_BOOKKEEPING_TEXT = re.compile(
    r"\bzero_grad\(|\.train\(\s*(True|False)?\s*\)|\.eval\(\)|\b\w*sched\w*\.step\(|\bperf_counter(_ns)?\(|\btime\.time\("
    r"|\bmonotonic\(|\bsynchronize\(|\bset_description|\bparam_group\[|\bclear_autocast|\bget_lr\b|\bget_last_lr\b|\bbarrier\("
)
_IN_PLACE_TEXT = re.compile(
    r"\.(mul|add|sub|div|lerp|copy|clamp|clip|addcmul|addcdiv|normal|sign|pow|sqrt)_\(|\.data\b"
)
STRAY_RATIO = 0.1
_MODEL_FUNCTIONS = frozenset({"forward", "__call__"})
_TRAINING_CALLS = frozenset({"backward", "step", "zero_grad"})

LEAST_SHARE_RATIO = 0.1
"""Share of a field's samples below which a path from the loop is not named."""
SHORTEST_STEP_NS = 1_000_000
"""Below this, a sampler sees little of C code and lands on loops and calls: lines show where, not how much."""
FEWEST_SAMPLES = 3
"""Fewer samples than this are chance, not a part of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldShare:
    """The part of one time field that lines of some kinds account for.

    ``mean_ns`` is per steady step, ``low_ns`` and ``high_ns`` its bounds from the number of stack samples. ``lines``
    are those lines, largest first.
    """

    mean_ns: float
    low_ns: float
    high_ns: float
    samples_count: int
    lines: tuple[Line, ...]


NOTHING = FieldShare(mean_ns=0.0, low_ns=0.0, high_ns=0.0, samples_count=0, lines=())


def loop_places(rank: RankAnalysis) -> frozenset[tuple[str, str]]:
    """File and name of the functions that hold the training loop: those that call backward, directly or not.

    Such a name says nothing about what one of its lines does: ``train_and_log`` also computes.
    """
    stacks = [line.stack or (line.where,) for line in rank.lines.get("backward_ns", ())]
    outside = (stack[: len(stack) - len(frames_inside_backward(rank, stack))] for stack in stacks)
    return frozenset((w.file, w.function) for stack in outside for w in stack)


def frames_inside_backward(rank: RankAnalysis, stack: tuple[Where, ...]) -> tuple[Where, ...]:
    """The user's frames of a backward's sample that autograd called: those below a line at which torch itself was
    seen."""
    calls = {
        (line.where.file, line.where.line)
        for line in rank.lines.get("backward_ns", ())
        if line.leaf.startswith("torch.") and len(line.stack) <= len(stack)
    }
    at = next((i for i, where in enumerate(stack) if (where.file, where.line) in calls), len(stack) - 1)
    return stack[at + 1 :]


def loop_bodies(rank: RankAnalysis) -> tuple[frozenset[str], ...]:
    """The names in the statements around each sampled backward call, which identify the body of the training loop.

    A functional step (``loss = step_fn(...)``) has no call named backward.
    """
    loop = loop_places(rank)
    lines = rank.lines.get("backward_ns", ())
    return tuple(frozenset(x.calls) for x in lines if x.calls and (x.where.file, x.where.function) in loop)


def line_kind(
    line: Line, loop: frozenset[tuple[str, str]] = frozenset(), bodies: tuple[frozenset[str], ...] = ()
) -> str:
    """What a sampled line was doing, judged by its text, its innermost frame and the functions below the loop.

    ``loop`` and ``bodies`` are the functions that hold the training loop and what its body calls.

    >>> from hotloop.core.findings import Where
    >>> where = Where(file="train.py", line=3, function="main")
    >>> line_kind(Line(where=where, share_ratio=1.0, samples=9, text="writer.add_scalar('loss', loss.item(), step)"))
    'logging'
    >>> line_kind(Line(where=where, share_ratio=1.0, samples=9, text="p.grad.mul_(scale)"))
    'weights'
    """
    names = [where.name for where in _below_the_loop(line, loop)]
    text = line.text
    if _COLLECTING_TEXT.search(text):
        return COLLECTING
    if _LOGGING_TEXT.search(text) or _LOGGING_LEAF.match(line.leaf) or any(_LOGGING_NAME.search(n) for n in names):
        return LOGGING
    if is_waiting(line):
        return WAITING
    if _LIBRARY_CLIP.search(text) or _BOOKKEEPING_TEXT.search(text):
        return BOOKKEEPING
    if _WEIGHTS_TEXT.search(text) or any(_WEIGHTS_NAME.search(n) for n in names):
        return WEIGHTS
    around = _calls_around(line, loop, bodies)
    for kind, pattern in ((LOGGING, _LOGGING_TEXT), (WEIGHTS, _WEIGHTS_TEXT)):
        if pattern.search(around):
            return kind
    if _STATE_WALK.search(around):
        return WEIGHTS
    of_batch = any(_BATCH_NAME.search(n) for n in names if not _MOMENT_NAME.match(n))
    if _BATCH_TEXT.search(text) or of_batch or _BATCH_TEXT.search(around):
        return BATCH
    if _IN_PLACE_TEXT.search(text):
        return IN_PLACE
    return UNKNOWN


def is_waiting(line: Line) -> bool:
    """Whether the samples of a line are inside a call that blocks, by its innermost frame."""
    return _WAITING_LEAF.match(line.leaf) is not None or is_sleeping(line)


def is_sleeping(line: Line) -> bool:
    return _SLEEP_TEXT.search(line.text) is not None


def field_lines(rank: RankAnalysis, field_name: str) -> tuple[tuple[Line, str], ...]:
    """The lines seen in a time field, each with exactly one kind, so that no time is reported as two kinds.

    A helper function's unclear lines get the kind of its clear ones. Lines that belong to a save or a validation come
    first.
    """
    savers, validators = saving_functions(rank), validating_functions(rank)
    loop, exchangers = loop_places(rank), exchanging_functions(rank)
    owned = []
    for line, kind in _lines_by_look(rank, field_name):
        below = {(where.file, where.function) for where in _below_the_loop(line, loop)}
        finishes = line.beside_save and _FINISHING_TEXT.search(line.text) is not None
        if (line.where.file, line.where.function) in savers or finishes:
            kind = SAVING
        elif field_name in GAP_FIELDS and below & validators:
            kind = VALIDATING
        elif kind in (WEIGHTS, IN_PLACE, UNKNOWN) and below & exchangers:
            kind = EXCHANGING
        owned.append((line, kind))
    return tuple(owned)


def _lines_by_look(rank: RankAnalysis, field_name: str) -> tuple[tuple[Line, str], ...]:
    """The lines of a field with the kinds that their text, their functions and their surroundings give them."""
    loop, bodies = loop_places(rank), loop_bodies(rank)
    lines = rank.lines.get(field_name, ())
    kinds = [line_kind(line, loop, bodies) for line in lines]
    weight: dict[tuple[tuple[str, str], str], int] = {}
    for line, kind in zip(lines, kinds, strict=True):
        if kind != UNKNOWN:
            for place in {(w.file, w.function) for w in _below_the_loop(line, loop)}:
                weight[place, kind] = weight.get((place, kind), 0) + line.samples
    settled = []
    for line, kind in zip(lines, kinds, strict=True):
        if kind == UNKNOWN:
            places = {(w.file, w.function) for w in _below_the_loop(line, loop)}
            votes = {k: n for (place, k), n in weight.items() if place in places}
            kind = max(votes, key=lambda k: votes[k]) if votes else UNKNOWN
        settled.append((line, kind))
    return tuple(settled)


def time_of_kinds(rank: RankAnalysis, field_name: str, *kinds: str) -> FieldShare:
    """The part of a time field that lines of these kinds account for."""
    lines = tuple(line for line, kind in field_lines(rank, field_name) if kind in kinds)
    return _time_of(rank, field_name, lines, is_validation=kinds == (VALIDATING,))


def time_of_lines(rank: RankAnalysis, field_name: str, is_meant: Callable[[Line, str], bool]) -> FieldShare:
    """The part of a time field in lines for which ``is_meant`` holds, by line and kind."""
    lines = tuple(line for line, kind in field_lines(rank, field_name) if is_meant(line, kind))
    return _time_of(rank, field_name, lines)


def saving_functions(rank: RankAnalysis) -> frozenset[tuple[str, str]]:
    """File and name of the functions that save checkpoints, unless they hold the training loop themselves.

    If saves were seen, but too short for a sample of each, functions that are named after saving count too.
    """
    lines = rank.lines.get("checkpoint_ns", ())
    found = {(line.where.file, line.where.function) for line in lines}
    if rank.mean.get("checkpoints", 0.0) > 0:
        around = (line.where for name in GAP_FIELDS for line in rank.lines.get(name, ()))
        found |= {
            (where.file, where.function)
            for where in around
            if _SAVING_NAME.search(where.name) and not _LOGGING_NAME.search(where.name)
        }
    return frozenset(found) - loop_places(rank)


def validating_functions(rank: RankAnalysis) -> frozenset[tuple[str, str]]:
    """File and name of the functions that the loop calls to validate, and that take no part in training.

    None if most forwards without gradients are not validation (a teacher, rollouts).
    """
    loop = loop_places(rank)
    if 2 * rank.breakdown.mean_ns("validation") <= rank.mean["nograd_ns"]:
        return frozenset()

    def called_for(*names: str) -> Counter[tuple[str, str]]:
        samples: Counter[tuple[str, str]] = Counter()
        for line in (line for name in names for line in rank.lines.get(name, ())):
            ways = line.ways or ((line.stack or (line.where,), line.share_ratio),)
            whole = sum(share for _, share in ways) or 1.0
            for stack, share in ways:
                for place in {(where.file, where.function) for where in _below_in(stack, loop)}:
                    samples[place] += line.samples * share / whole  # type: ignore[assignment]
        return samples

    evaluated, trained = called_for("nograd_ns"), called_for("forward_ns", "backward_ns", "optimizer_ns")
    models = {place for place in evaluated if place[1].rpartition(".")[2] in _MODEL_FUNCTIONS}
    # A single sample may have been counted for the phase next to its own.
    parts = {place for place, samples in trained.items() if samples > STRAY_RATIO * evaluated[place]}
    return frozenset(set(evaluated) - models - parts) - loop


def exchanging_functions(rank: RankAnalysis) -> frozenset[tuple[str, str]]:
    """File and name of the functions that the loop calls for its own collectives; not those named after another purpose
    that needs a collective (the norm of all ranks' gradients, for clipping)."""
    loop = loop_places(rank)
    return frozenset(
        (where.file, where.function)
        for line in rank.lines.get("communication_ns", ())
        for where in _below_the_loop(line, loop)
        if not _PURPOSE_NAME.search(where.name)
    )


def time_between_phases(rank: RankAnalysis, *kinds: str) -> FieldShare:
    """The part of all gaps together that lines of these kinds account for."""
    return add_shares(*(time_of_kinds(rank, name, *kinds) for name in GAP_FIELDS if rank.lines.get(name)))


def own_ns(rank: RankAnalysis, field_name: str) -> float:
    """Mean of a time field per step, without the time that the breakdown counts as validation."""
    return max(0.0, rank.mean[field_name] - rank.validation_ns.get(field_name, 0.0))


def add_shares(*shares: FieldShare) -> FieldShare:
    """The sum of several fields' parts; their lines by time, largest first."""
    weighed = sorted(
        ((part.mean_ns * line.samples / max(1, part.samples_count), line) for part in shares for line in part.lines),
        key=lambda pair: -pair[0],
    )
    return FieldShare(
        mean_ns=sum(s.mean_ns for s in shares),
        low_ns=sum(s.low_ns for s in shares),
        high_ns=sum(s.high_ns for s in shares),
        samples_count=sum(s.samples_count for s in shares),
        lines=tuple(line for _, line in weighed),
    )


def places(lines: tuple[Line, ...], count: int = 3) -> tuple[Where, ...]:
    """The first few different places of some lines."""
    # A comprehension is a function of its own on the same line.
    first: dict[tuple[str, int], Where] = {}
    for line in lines:
        first.setdefault((line.where.file, line.where.line), line.where)
    return tuple(first.values())[:count]


def places_in_loop(rank: RankAnalysis, field_name: str, *, beside: str = "") -> tuple[Where, ...]:
    """Where the training loop starts the work of a field, and the helper's line that this leads to; most samples first.

    Samples of a forward are in the model's own lines, which are right as they are: this reports who called the model.
    Helpers that also hold the other field come last: a teacher is called where the student is. Falls back on the
    sampled lines themselves if no stack goes through the loop.
    """
    loop = loop_places(rank)
    shares = _paths_from_loop(rank, field_name, loop)
    if not shares:
        return places(rank.lines.get(field_name, ()), 2)
    others = {(where.file, where.function) for path in _paths_from_loop(rank, beside, loop) for where in path[-1:]}
    ranked = sorted(shares, key=lambda path: ((path[-1].file, path[-1].function) in others, -shares[path]))
    kept = [path for path in ranked if shares[path] >= LEAST_SHARE_RATIO] or ranked[:1]
    return tuple(dict.fromkeys(where for path in kept for where in path))


def later_places_in_loop(rank: RankAnalysis, field_name: str, *, beside: str = "") -> tuple[Where, ...]:
    """Like ``places_in_loop``, but of several calls from one function, the later one comes first: only it can
    repeat."""
    found = places_in_loop(rank, field_name, beside=beside)
    loop = loop_places(rank)
    paths: list[list[Where]] = []
    for where in found:
        if (where.file, where.function) in loop or not paths:
            paths.append([where])
        else:
            paths[-1].append(where)
    first = paths[0][0] if paths else None
    if first is None or any((path[0].file, path[0].function) != (first.file, first.function) for path in paths):
        return found
    ranked = sorted(paths, key=lambda path: -path[0].line)
    return tuple(dict.fromkeys(where for path in ranked for where in path))


def _paths_from_loop(
    rank: RankAnalysis, field_name: str, loop: frozenset[tuple[str, str]]
) -> dict[tuple[Where, ...], float]:
    """The loop's own line and the one below it, outside the model -> the share of a field's samples."""
    shares: dict[tuple[Where, ...], float] = {}
    for line in rank.lines.get(field_name, ()):
        for stack, share_ratio in line.ways or ((line.stack or (line.where,), line.share_ratio),):
            last = max((i for i, where in enumerate(stack) if (where.file, where.function) in loop), default=None)
            if last is not None:
                below = stack[last + 1 : last + 2]
                path = (stack[last], *(where for where in below if where.name not in _MODEL_FUNCTIONS))
                shares[path] = shares.get(path, 0.0) + share_ratio
    return shares


def time_of_batches_after_acting(rank: RankAnalysis) -> FieldShare:
    """The part of the time after a forward without gradients in which a function with such a name makes a batch.

    An environment's own lines are also in this gap and look alike, so only a function's name counts. Work that a
    function does around its own forwards (``sample_action``, ``decode_batch``) needs the model and does not count.
    """
    loop = loop_places(rank)
    asking = {
        (where.file, where.function)
        for line in rank.lines.get("nograd_ns", ())
        for where in _below_the_loop(line, loop)
        if where.name not in _MODEL_FUNCTIONS
    }

    def makes_batch(line: Line, kind: str) -> bool:
        below = _below_the_loop(line, loop)
        named = any(_BATCH_MAKER_NAME.search(where.name) for where in below)
        return kind == BATCH and named and not any((where.file, where.function) in asking for where in below)

    return time_of_lines(rank, "after_nograd_ns", makes_batch)


def time_of_prefetching(rank: RankAnalysis) -> FieldShare:
    """The part of the time between forward and backward in which, by the loop's source, the next batch is made."""
    of_others = (LOGGING, WEIGHTS, COLLECTING, SAVING, VALIDATING)
    return time_of_lines(rank, "after_forward_ns", lambda line, kind: bool(line.makes_batch) and kind not in of_others)


def time_of_unclear_batches(rank: RankAnalysis) -> FieldShare:
    """The part of that time in functions that are named after making batches, if the source does not show their use."""
    loop = loop_places(rank)
    return time_of_lines(
        rank,
        "after_forward_ns",
        lambda line, kind: (
            kind == BATCH
            and line.makes_batch is None
            and any(_BATCH_MAKER_NAME.search(where.name) for where in _below_the_loop(line, loop))
        ),
    )


def _ns_per_share(rank: RankAnalysis, field_name: str, is_validation: bool) -> float:
    """The time that a line with every sample of a field would have.

    The breakdown counts bursts of validation by the clock. That time comes off the lines of the functions that
    validate, which keep the rest of theirs (after the last forward); if no such function is known, it comes off all
    lines.
    """
    whole_ns, in_bursts_ns = rank.mean[field_name], rank.validation_ns.get(field_name, 0.0)
    if not is_validation and in_bursts_ns <= 0:
        return whole_ns
    share = min(1.0, sum(line.share_ratio for line, kind in field_lines(rank, field_name) if kind == VALIDATING))
    if is_validation:
        return max(0.0, whole_ns - in_bursts_ns / share) if share > 0 else 0.0
    return min(whole_ns, own_ns(rank, field_name) / (1.0 - share)) if share < 1 else 0.0


def _time_of(
    rank: RankAnalysis, field_name: str, lines: tuple[Line, ...], *, is_validation: bool = False
) -> FieldShare:
    all_lines = rank.lines.get(field_name, ())
    field_ns = _ns_per_share(rank, field_name, is_validation)
    if not lines or field_ns <= 0:
        return NOTHING
    share = min(1.0, sum(line.share_ratio for line in lines))
    # Each line knows its share and its count, so together they show how many samples the field had.
    shares_sum = sum(line.share_ratio for line in all_lines)
    total = sum(line.samples for line in all_lines) / shares_sum if shares_sum > 0 else 0.0
    _, high = share_bounds(share, total)
    # If a line has several statements, one of them may take all of the time, and it may not be the one that is meant.
    sure = min(1.0, sum(line.share_ratio for line in lines if ";" not in line.text))
    low = share_bounds(sure, total)[0] if sure > 0 and rank.step_mean_ns >= SHORTEST_STEP_NS else 0.0
    if sum(line.samples for line in lines) < FEWEST_SAMPLES:
        return NOTHING
    return FieldShare(
        mean_ns=share * field_ns,
        low_ns=low * field_ns,
        high_ns=high * field_ns,
        samples_count=sum(line.samples for line in lines),
        lines=lines,
    )


def _below_the_loop(line: Line, loop: frozenset[tuple[str, str]]) -> tuple[Where, ...]:
    """The frames that the training loop called, without its own functions and whatever called them."""
    return _below_in(line.stack or (line.where,), loop)


def _below_in(stack: tuple[Where, ...], loop: frozenset[tuple[str, str]]) -> tuple[Where, ...]:
    inside = [i for i, where in enumerate(stack) if (where.file, where.function) in loop]
    if inside:
        return stack[max(inside) + 1 :]
    # Without a sampled backward, the innermost frame may be the loop itself, so only a frame that something called
    # counts as a helper.
    return tuple(where for where in stack[1:] if where.name not in ("main", "<module>"))


def _calls_around(line: Line, loop: frozenset[tuple[str, str]], bodies: tuple[frozenset[str], ...]) -> str:
    """The calls in the loop or function around a line, unless that is the training loop itself, which calls everything.

    For a loop over gradients, also ``.grad``, which is read and not called.
    """
    called = {call.rsplit(".", 1)[-1] for call in line.calls}
    if (line.where.file, line.where.function) in loop:
        trains = called & {function for _, function in loop} or any(body <= set(line.calls) for body in bodies)
    else:
        trains = False
    if trains or called & _TRAINING_CALLS:
        return ""
    return " ".join(f"{call}()" for call in line.calls) + " .grad" * line.walks_gradients


def saving_rank(analysis: Analysis) -> RankAnalysis | None:
    """The rank that spends most time on checkpoints; None if that is not a material part of its steps."""
    rank = most_saving_rank(analysis)
    written_ratio = rank.breakdown.share("checkpoint")
    if written_ratio < MATERIAL_RATIO:
        return None
    is_sure = _saves_alike(rank) or written_ratio >= threshold_ratio(rank, judged_fields=("checkpoint_ns",))
    return rank if is_sure else None


def most_saving_rank(analysis: Analysis) -> RankAnalysis:
    """The rank with the largest share of its steps in saves, however small."""
    return max(analysis.ranks, key=lambda one: one.breakdown.share("checkpoint"))


def _saves_alike(rank: RankAnalysis) -> bool:
    """Whether saves recur and their mean time exceeds its noise: each was timed, however uneven the steps are."""
    saves = [ns for ns in rank.columns.get("checkpoint_ns", ()) if ns > 0]
    if len(saves) < 2:
        return False
    return statistics.fmean(saves) >= NOISE_MULTIPLE * statistics.stdev(saves) / math.sqrt(len(saves))


def saving_times_ns(rank: RankAnalysis) -> dict[str, float]:
    """Time field -> how much of it saving takes per step: the save itself, and what its functions do around it."""
    found = {"checkpoint_ns": rank.mean.get("checkpoint_ns", 0.0)}
    found |= {name: time_of_kinds(rank, name, SAVING).mean_ns for name in GAP_FIELDS if rank.lines.get(name)}
    return {name: time_ns for name, time_ns in found.items() if time_ns > 0}
