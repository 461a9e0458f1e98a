"""Checks of DataLoaders, their samplers and their datasets."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from hotloop.core.findings import Severity
from hotloop.core.lint import LintEdit, LintFinding, lint_rule
from hotloop.judge.lint.formats.script import LintedScript, LoopStep
from hotloop.judge.lint.python_code import FORS, FUNCTIONS, Loop, constant, has_unpacked, keyword
from hotloop.judge.lint.python_flow import LoopCall, list_words

NOT_TRAINING = re.compile(r"(?i)val|test|eval|dev|infer|predict|hold|demo")
OTHERS_DO_IT = ("lightning", "accelerate", "ignite", "horovod", "composer", "RepeatAugSampler", "deepspeed")
IN_MEMORY = re.compile(r"TensorDataset|Replay|Rollout|MNIST|CIFAR")
DECODES = re.compile(r"ImageFolder|DatasetFolder|ImageNet|Coco|LIBRISPEECH|SPEECHCOMMANDS|VOCSegmentation|Cityscapes")
"""Datasets of libraries that read and decode a file for each item."""
SLOW_ITEMS = re.compile(
    r"Image\.open|cv2\.|imread|read_image|rasterio|librosa|torchaudio|soundfile|np\.load|numpy\.load|torch\.load|h5py|pd\.read|pandas\.read|open$|"
    r"decord|VideoReader|nibabel|pydicom|load_image|transform|augment|tokenizer$|resize|from_file|lmdb|zipfile|tarfile|load$"
)
"""Slow work per item: files, decoding, augmentation."""


@lint_rule("loader-per-step", "a DataLoader or its iterator is built again and again", reads="python", each="training")
def loader_per_step(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for `DataLoader(...)` or `next(iter(loader))` in the body of the training loop, outside any condition, and for
    loaders that are built in each epoch.

    ## Why it costs
    Each new iterator starts its workers and fills its queue again, for only one batch. It also begins a new epoch:
    without shuffling, every step trains on the first batch. If the loader is built once per epoch, the cost is the
    start of the workers.

    ## How to recognize it
    The call runs in each iteration of the loop that steps the optimizer, and no inner loop iterates over the loader.

    ## What to do
    Build the loader once, and take batches with `for batch in loader`; for an endless stream, keep one iterator and
    create a new one when it ends.

    ## When it is wrong
    Ignore the finding if each pass of the loop is a complete training run in helper functions, such as one run per
    client.
    """
    for event in script.events(training.loop) if training.steps else ():
        drawn = event.call.args[0] if event.name == "next" and event.call.args else None
        inner = (
            drawn.args[0] if isinstance(drawn, ast.Call) and script.name(drawn.func) == "iter" and drawn.args else None
        )
        loads = inner is not None and (script.role(inner) == "loader" or "loader" in script.name(inner).lower())
        what = f"next(iter({script.source(inner)})) restarts the loader" if inner else "a DataLoader is built"
        builds = event.call in script.loaders and not _is_gone_through(script, event.call, training)
        yield from script.report(
            event.is_certain and (loads or builds) and event,
            Severity.HIGH,
            f"{what} in every step, with its workers and its order, for one batch",
            "build the loader once and iterate over it: for batch in loader",
        )
    for loop, step in script.epochs:
        built = [one for one in script.loaders if script.within(one, loop) and not script.conditions(one, loop)]
        outer = (
            step is training
            and loop is not training.loop
            and not any(script.within(one, loop) for one in script.models)
        )
        yield from script.report(
            outer and bool(built) and built[0],
            Severity.LOW,
            "the DataLoader is built in every epoch: its workers start again",
            "build it once, with persistent_workers=True",
        )


def _is_gone_through(script: LintedScript, call: ast.Call, training: LoopStep) -> bool:
    """Whether an inner loop takes its batches from the loader that is built here, or a function gets the loader."""
    inner = [
        one
        for around in {training.container, script.scope(call)} - {script.tree}
        for one in ast.walk(around)
        if isinstance(one, (*FORS, ast.comprehension)) and one is not training.container
    ]
    passed = [
        arg for event in training.events if event.call is not call for arg in event.call.args if event.name != "iter"
    ]
    return any(call in script.origins(one) for one in [*(one.iter for one in inner), *passed] if call in script.loaders)


@lint_rule("sampler-without-set-epoch", "a DistributedSampler draws the same order in every epoch", reads="python")
def sampler_without_set_epoch(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a shuffling `DistributedSampler` in a script that trains for several epochs without any call to
    `set_epoch`.

    ## Why it costs
    The sampler seeds its permutation with its epoch. If the epoch is never set, every epoch has the same order, and
    each rank always gets the same samples: batches are never mixed anew, and the model learns their order.

    ## How to recognize it
    The training loader uses the sampler, an outer loop iterates over the loader again and again, and `set_epoch` is
    never called.

    ## What to do
    Call `sampler.set_epoch(epoch)` at the start of each epoch. `hotloop lint --fix` adds it where the sampler and the
    epoch are plain names in the same function.

    ## When it is wrong
    Ignore the finding if there is only one epoch, or if another file calls `set_epoch` on the loader's sampler.
    """
    if any(name in script.text for name in ("set_epoch", *OTHERS_DO_IT)):
        return
    samplers: list[ast.AST] = [
        one for one in script.calls_of(".DistributedSampler") if constant(keyword(one, "shuffle")) is not False
    ]
    for loop, step in script.epochs if samplers else ():
        source = script.loop_source(step.loop)
        given = [keyword(one, "sampler") for one in script.origins(source or loop) if isinstance(one, ast.Call)]
        used = [one for part in given if part is not None for one in script.origins(part) if one in samplers]
        for sampler in used if loop is not step.loop and _counts(script, loop) else ():
            name = next((name for name, values in script.assigned.items() if sampler in values), "loader.sampler")
            samplers.remove(sampler)
            yield from script.report(
                sampler,
                Severity.MEDIUM,
                f"{name} shuffles the same way in every epoch: set_epoch is never called",
                f"call {name}.set_epoch(epoch) at the start of each epoch",
                edits=_add_set_epoch(script, name, sampler, loop),
            )


def _counts(script: LintedScript, loop: Loop) -> bool:
    """Whether a loop counts epochs: it is over a range that is not known to have one element."""
    value = script.unwrap(loop.iter) if isinstance(loop, FORS) else None
    is_range = isinstance(value, ast.Call) and script.name(value.func).split(".")[-1] in ("range", "trange")
    return is_range and not (isinstance(value, ast.Call) and len(value.args) == 1 and constant(value.args[0]) == 1)


def _add_set_epoch(script: LintedScript, name: str, sampler: ast.AST, epochs: Loop) -> tuple[LintEdit, ...]:
    """A line at the start of the epoch, if the names are certainly bound there."""
    target, first = getattr(epochs, "target", None), epochs.body[0]
    indent = script.lines[first.lineno - 1][: first.col_offset]
    is_plain = isinstance(target, ast.Name) and target.id != "_" and len(script.assigned.get(name, ())) == 1
    here = (
        script.scope(sampler) is script.scope(epochs) is script.parent(script.statement(sampler))
        and getattr(sampler, "lineno", 0) < epochs.lineno
    )
    if not (is_plain and here and "." not in name) or first.lineno <= epochs.lineno or indent.strip():
        return ()
    text, line = f"{indent}{name}.set_epoch({getattr(target, 'id', '')})\n", first.lineno
    return (LintEdit(first_line=line, first_column=1, last_line=line, last_column=1, text=text),)


@lint_rule(
    "useless-non-blocking", "batches are copied with non_blocking=True from memory that is not pinned", reads="python"
)
def useless_non_blocking(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a loop that copies batches with `non_blocking=True` while its DataLoader has no `pin_memory`.

    ## Why it costs
    CUDA copies pageable memory through its own buffer, and the host waits: `non_blocking` changes nothing.

    ## How to recognize it
    The loop iterates over a DataLoader of this file that neither sets `pin_memory` nor takes unpacked arguments.

    ## What to do
    Build the loader with `DataLoader(..., pin_memory=True)`.

    ## When it is wrong
    Ignore the finding if the batches are pinned elsewhere, or if training runs on a CPU.
    """
    if "non_blocking" not in script.text:
        return
    copies = [call for call, _ in script.calls if constant(keyword(call, "non_blocking")) is True]
    for loop in dict.fromkeys(one for copy in copies for one in script.loops_around(copy)):
        loaders = [one for one in script.origins(script.loop_source(loop) or loop) if one in script.loaders]
        bare = [
            one
            for one in loaders
            if isinstance(one, ast.Call) and not has_unpacked(one) and not keyword(one, "pin_memory")
        ]
        yield from script.report(
            bool(bare) and bare == loaders and next(one for one in copies if script.within(one, loop)),
            Severity.LOW,
            "non_blocking=True has no effect: the loader does not pin its batches (pin_memory)",
            "build the loader with pin_memory=True",
        )


@lint_rule("workerless-loader", "the DataLoader used for training has no workers", reads="python", each="training")
def workerless_loader(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for the DataLoader of a training loop that has `num_workers=0`, which is also the default.

    ## Why it costs
    The training process then prepares the batches between the steps while the accelerator waits.

    ## How to recognize it
    Neither a keyword nor an unpacked argument sets `num_workers`. The severity is `medium` if the dataset's class opens
    files, decodes or augments for each item, and `low` otherwise.

    ## What to do
    Set `num_workers`. `hotloop run` measures how long the loop waits for batches and how many workers are enough;
    `hotloop bench loader` tries different numbers.

    ## When it is wrong
    Ignore the finding if the data is already in memory, or batches are so cheap that workers only add overhead.
    """
    source = script.loop_source(training.loop)
    for call in script.origins(source) if source is not None else ():
        if not isinstance(call, ast.Call) or call not in script.loaders or has_unpacked(call) or len(call.args) > 5:
            continue
        workers, collate = keyword(call, "num_workers"), keyword(call, "collate_fn")
        made = [one for one in script.origins(call.args[0]) if isinstance(one, ast.Call)] if call.args else []
        in_memory = any(IN_MEMORY.search(script.name(one.func)) for one in made)
        slow = [word for one in made if (word := _slow_item(script, one))]
        function = script.definition(collate) if collate is not None else None
        slow += [one.name for one in _events(script, function) if SLOW_ITEMS.search(one.name)]
        yield from script.report(
            not in_memory and (workers is None or constant(workers) == 0) and call,
            Severity.MEDIUM if slow else Severity.LOW,
            "num_workers is 0: the training process prepares each batch, and the GPU waits for it"
            + (f" ({slow[0]} for each item)" if slow else ""),
            "set num_workers; hotloop run measures the wait for batches",
        )


def _events(script: LintedScript, function: ast.AST | None) -> Sequence[LoopCall]:
    """The calls in a function; none if it is unknown."""
    return script.events(function) if isinstance(function, FUNCTIONS) else ()


def _slow_item(script: LintedScript, made: ast.Call) -> str:
    """The slow work for each item of a dataset; empty if none is known."""
    owner = script.definition(made.func)
    getter = script.method(owner, "__getitem__") if isinstance(owner, ast.ClassDef) else None
    names = [event.name for event in _events(script, getter)]
    names += [script.name(made.func)] if DECODES.search(script.name(made.func)) else []
    return next((name for name in names if DECODES.search(name) or SLOW_ITEMS.search(name)), "")


@lint_rule(
    "loader-order",
    "the training loader has the wrong order or the wrong share of the data",
    reads="python",
    each="training",
)
def loader_order(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks at the loader used for training: finds loaders without shuffling, with `shuffle` and a sampler, without a
    `DistributedSampler` under DDP, or with the validation dataset.

    ## Why it costs
    If batches follow the order of the files (often by class), the model learns less well. Without a separate share for
    each rank, all ranks compute the same samples: N GPUs do the work of one. `shuffle=True` with a sampler raises
    ValueError.

    ## How to recognize it
    The rule traces the loop's loader to the DataLoader call and to its dataset.

    ## What to do
    Use `shuffle=True` in a single process, and a `DistributedSampler` with `set_epoch` in several.

    ## When it is wrong
    Ignore the finding if the dataset is an iterable, shuffles its own samples, or is split by rank elsewhere.
    """
    source = script.loop_source(training.loop)
    parallel = script.calls_of(".DistributedDataParallel", ".DDP") and not any(
        one in script.text for one in OTHERS_DO_IT
    )
    for call in script.origins(source) if source is not None and training.steps else ():
        if (
            not isinstance(call, ast.Call)
            or call not in script.loaders
            or has_unpacked(call)
            or not 0 < len(call.args) < 3
        ):
            continue
        made = [one for one in script.origins(call.args[0]) if isinstance(one, ast.Call)]
        whole = " ".join([script.name(call.args[0]), *(script.name(one.func) for one in made)])
        owners = [one for one in (script.definition(each.func) for each in made) if isinstance(one, ast.ClassDef)]
        streams = any(script.derives(one, "Iterable") or script.method(one, "__iter__") for one in owners)
        shuffle, sampler = keyword(call, "shuffle"), keyword(call, "sampler") or keyword(call, "batch_sampler")
        fixed = sampler is None and (shuffle is None or constant(shuffle) is False) and not NOT_TRAINING.search(whole)
        kinds = [type(one) for one in script.origins(sampler)] if sampler is not None else []
        checks = (
            (
                constant(shuffle) is True and kinds == [ast.Call],
                Severity.HIGH,
                "shuffle=True with a sampler raises ValueError: they are mutually exclusive",
            ),
            (
                sampler is None
                and parallel
                and not script.has(r"(?i)shard|split_by|rank\w*\s*::|\[[^\n\]=]{0,40}rank\w*\s*[:\]]|Sampler\(")
                and _is_whole(script, call.args[0]),
                Severity.HIGH,
                "the loader has no DistributedSampler: every rank trains on all of the data and repeats the same work",
            ),
            (
                fixed
                and not _ORDERED.search(script.text)
                and not script.mentions(call.args[0], _RANDOM)
                and not script.has(r"\bmake_(classification|regression|blobs|moons)\("),
                Severity.MEDIUM,
                "the training loader does not shuffle: each epoch has the same batches, in the order of the data",
            ),
        )
        for severity, text in [one[1:] for one in checks if one[0] and not streams and not _STREAM.search(whole)][:1]:
            advice = "shuffle=True in a single process; DistributedSampler(dataset) and set_epoch in several"
            yield from script.report(call, severity, text, advice, is_sure=False)


def _is_whole(script: LintedScript, data: ast.expr) -> bool:
    """Whether a dataset is built in this file without a rank, by torch or torchvision or a class of this file: others
    may give each rank its share."""
    made = script.origins(data)
    known = [
        isinstance(one, ast.Call)
        and ("torch" in script.name(one.func) or script.is_own(script.definition(one.func) or one.func))
        and not any(RANKED.search(word) for part in ast.walk(one) for word in list_words(part))
        for one in made
    ]
    return bool(known) and all(known)


RANKED = re.compile(r"(?i)rank|world|shard|local|part(ition)?s?$|split$")
_RANDOM = re.compile(r"^(randn?|randint)$")
_STREAM = re.compile(r"(?i)iter|web|stream|ffcv")
_ORDERED = re.compile(r"(?i)shuffle\(|randperm|permutation|\.sample\(|pack|sequence|time_?series|bptt|rnn|lstm")


WHOLE = re.compile(
    r"(^|\.)(read_csv|read_parquet|read_json|read_excel|read_table|read_feather|readlines|File|load_dataset|load|loadtxt|genfromtxt|memmap|HDF5File)$"
)
TO_DEVICE = re.compile(r"(?i)cuda|device|gpu")


@lint_rule("slow-dataset", "a dataset does work for each item that belongs elsewhere", reads="python")
def slow_dataset(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks in the `__getitem__` and collate functions of a file for files that are read in full for one item, tensors
    that a worker moves to the GPU, random generators that all workers copy, iterables that workers do not split, and
    lists of Python objects that workers hold.

    ## Why it costs
    Reading a table for each item makes the loader thousands of times slower. CUDA raises an error in a forked worker. A
    copied generator gives all workers the same numbers; an iterable that is not split gives every sample to each
    worker. Lists of objects are copied into each worker as their reference counts change: memory grows during the
    epoch.

    ## How to recognize it
    The file that is read does not depend on the index, or the class is a dataset that is passed to a loader with
    workers.

    ## What to do
    Read the file once in `__init__`, or lazily once per worker; move batches in the training loop; seed from
    `get_worker_info`; keep large tables in arrays.

    ## When it is wrong
    Ignore the finding if the file is tiny, or the loader has no workers in practice.
    """
    if not script.has("__getitem__|__iter__|collate_fn"):
        return
    workers = [
        call
        for call in script.loaders
        if has_unpacked(call) or ((count := keyword(call, "num_workers")) and constant(count) not in (None, 0))
    ]
    collates = [script.definition(part) for call in workers if (part := keyword(call, "collate_fn"))]
    owners = [one for one in script.of[ast.ClassDef] if script.derives(one, r"Dataset$|(^|\.)data\.")]
    loaded = {owner for owner in owners for call in workers if _is_loaded(script, owner, call, len(owners) == 1)}
    for function in [*collates, *(script.method(one, "__getitem__") for one in owners if one in loaded)]:
        moves = [
            one for one in _events(script, function) if re.search(r"\.(to|cuda)$", one.name) and _is_device(script, one)
        ]
        yield from script.report(
            bool(workers and moves) and moves[0],
            Severity.HIGH,
            f"{moves[0].name if moves else ''}() uses CUDA in a worker of the loader: it raises in a forked process",
            "return CPU tensors, and copy batches in the training loop",
        )
    for owner in owners:
        getter, walker = script.method(owner, "__getitem__"), script.method(owner, "__iter__")
        reads = [one for one in _events(script, getter) if WHOLE.search(one.name) and _reads_all(script, one)]
        opens = bool(reads) and reads[0].name.endswith(("File", "memmap"))
        yield from script.report(
            bool(reads) and reads[0],
            Severity.LOW if opens else Severity.HIGH,
            f"{reads[0].name if reads else ''} in __getitem__ {'opens the' if opens else 'reads the entire'} file "
            "for each item",
            "read it once in __init__, or open it lazily once per worker",
        )
        text = script.text_of(owner)
        yield from script.report(
            owner in loaded
            and script.derives(owner, "IterableDataset")
            and not re.search(r"worker|islice|\bin (iter\()?self\.\w*(dataset|stream|pipe|loader)", text)
            and (not re.search(r"shard|rank", text) or BY_RANK.search(text))
            and walker is not None
            and not re.search(r"while True|while 1\b", script.text_of(walker))
            and walker,
            Severity.HIGH,
            f"{owner.name} is not split among workers: each of them yields every sample",
            "take every n-th sample by torch.utils.data.get_worker_info()",
        )
        held = owner in loaded and getter is not None
        for node in (one for one in ast.walk(owner) if held and isinstance(one, ast.Assign)):
            name, made = (
                script.name(node.targets[0]),
                [script.name(one.func) for one in ast.walk(node.value) if isinstance(one, ast.Call)],
            )
            kept = name.startswith("self.") and script.scope(node) is not getter
            drawn = any(one.name.startswith(f"{name}.") for one in _events(script, getter))
            yield from script.report(
                kept
                and drawn
                and any(one.endswith(("default_rng", "RandomState", "random.Random")) for one in made)
                and node,
                Severity.MEDIUM,
                f"every worker gets a copy of {name}: all draw the same random numbers, and again in each epoch",
                "create the generator in the worker, seeded with torch.initial_seed()",
            )
            yield from script.report(
                kept
                and getter is not None
                and name in script.text_of(getter)
                and any(OPENED.search(one) for one in made)
                and not re.search(rf"{re.escape(name)}(\.close|\s*=\s*None)|del {re.escape(name)}", text)
                and node,
                Severity.HIGH,
                f"{name} is opened before the workers start: they share its handle, and read wrong data or fail",
                "open it lazily in __getitem__, once per worker",
                is_sure=False,
            )
            yield from script.report(
                kept
                and any(
                    one.endswith(("json.loads", ".readlines", ".to_pylist", "DictReader", "csv.reader")) for one in made
                )
                and node,
                Severity.MEDIUM,
                f"{name} is a list of Python objects: every worker copies it page by page as "
                "reference counts change, so "
                "memory grows with workers and ranks",
                "keep rows in arrays or tensors (offsets and bytes), or in Arrow",
                is_sure=False,
            )


BY_RANK = re.compile(r"\[\s*(self\.)?\w*rank\s*::")
OPENED = re.compile(r"(^|\.)(h5py\.File|lmdb\.open|sqlite3\.connect|ZipFile|netCDF4\.Dataset)$")
"""Calls whose handle does not survive a fork."""


def _is_loaded(script: LintedScript, owner: ast.AST, loader: ast.Call, is_alone: bool) -> bool:
    """Whether a loader takes a dataset of this class, or, of an unknown one, whether the file has no other."""
    given = loader.args[0] if loader.args else keyword(loader, "dataset")
    classes = [script.definition(one.func) for one in script.made(given)] if given is not None else []
    return owner in classes or (is_alone and not any(classes))


def _is_device(script: LintedScript, event: LoopCall) -> bool:
    given = event.call.args[0] if event.call.args else event.call
    shown = script.source(given)
    beside = re.search(r"(?<!self|args|nfig|.cfg|.opt)\.device$", shown)  # where another tensor is
    return not event.tests and (event.name.endswith("cuda") or bool(TO_DEVICE.search(shown) and not beside))


def _reads_all(script: LintedScript, event: LoopCall) -> bool:
    """Whether every item reads the same file, each time."""
    parts = [one for part in event.call.args[:1] for one in script.slice(part)]
    names = [one for one in parts if isinstance(one, ast.Name) and getattr(script.scope(one), "name", "") != "__init__"]
    varies = any(
        one.at == -1 or (isinstance(one.value, ast.arg) and one.value.arg != "self")
        for name in names
        for one in script.reaching(name)
    )
    lazy = keyword(event.call, "mmap_mode") or any(isinstance(one, (ast.Compare, ast.UnaryOp)) for one in event.tests)
    return "self" in [one.id for one in names] and not varies and not lazy


@lint_rule("leaked-split", "data leaks between training and validation", reads="python")
def leaked_split(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for statistics that are fitted before the split, scalers that are fitted again on test data, `random_split` on
    a dataset with augmentation, and validation loaders that use the training dataset.

    ## Why it costs
    The score that chooses the best model is too good, or noisy.

    ## How to recognize it
    `fit` or `fit_transform` on all data comes before `train_test_split`; or both parts of `random_split` share one
    dataset whose transform draws random numbers.

    ## What to do
    Split first, fit only on the training part, and give validation its own dataset without augmentation.

    ## When it is wrong
    Ignore the finding if you deliberately augment the validation data.
    """
    splits = script.calls_of(".train_test_split", ".random_split")
    after_all = script.calls_of(".fit", ".fit_transform") if splits else script.calls_of(".fit_transform")
    shared = splits and not script.has(r"deepcopy|\.dataset\.transform")
    for call in dict.fromkeys((*splits, *script.loaders, *after_all)):
        name = script.name(call.func)
        last, given = name.rpartition(".")[2], script.name(call.args[0]) if call.args else ""
        after = [one for one in splits if script.scope(one) is script.scope(call) and one.lineno > call.lineno]
        fits = re.search(r"(?i)(scaler|encod|pca|imputer|normal)\w*\.fit(_transform)?$", name)
        targets = [one for one, values in script.assigned.items() if call in values and call in script.loaders]
        checks = (
            (
                last == "fit_transform" and re.search(r"(?i)test|val", given),
                "is fitted again on evaluation data: use transform",
            ),
            (fits and after and call.args, "is fitted before the split: statistics of the test data leak"),
            (
                last == "random_split" and shared and call.args and _augments(script, call.args[0]),
                "gives training and validation one dataset: validation samples are augmented too",
            ),
            (
                any(re.match(r"(?i)(self\.)?(val|test|eval|dev)", one) for one in targets)
                and keyword(call, "sampler") is None
                and re.match(r"(?i)(self\.)?train_?(data|set|ds)", given),
                "for validation uses the training dataset: the score is the training score",
            ),
            (
                call in splits and constant(keyword(call, "shuffle")) is not False and _overlaps(script, call),
                "splits overlapping windows at random: the model has seen most of each validation window in training "
                "(leak); split by time",
            ),
        )
        for text in [one[1] for one in checks if one[0]]:
            yield from script.report(
                call,
                Severity.MEDIUM,
                f"{last}({given}) {text}",
                "split first, and keep the validation data separate",
                is_sure=False,
            )


def _overlaps(script: LintedScript, split: ast.Call) -> bool:
    """Whether the split data are windows of one series that begin at each step: ``x[i : i + n]``."""
    for made in (
        one for given in split.args[:1] for one in script.origins(given, through=("array", "stack", "tensor"))
    ):
        built = script.definition(made.func) if isinstance(made, ast.Call) else None
        getter = script.method(built, "__getitem__") if isinstance(built, ast.ClassDef) else None
        scope = getter if getter is not None else script.scope(made)
        index = {getter.args.args[-1].arg} if getter is not None else set()
        for node in (one for one in ast.walk(scope) if isinstance(one, ast.Subscript)):
            cut = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
            first = cut.lower if isinstance(cut, ast.Slice) else None
            last = cut.upper if isinstance(cut, ast.Slice) else None
            if not (isinstance(first, ast.Name) and isinstance(last, ast.BinOp) and isinstance(last.op, ast.Add)):
                continue
            begins = [one for one in script.reaching(first) if not isinstance(one.value, ast.arg)]
            counts = [one for one in begins if one.at == -1 and _counts_each(script, one.value)]
            words = {word.id for one in begins for word in ast.walk(one.value) if isinstance(word, ast.Name)}
            scaled = any(isinstance(part, (ast.Mult, ast.Subscript)) for one in begins for part in ast.walk(one.value))
            kept = getter is not None or any(
                isinstance(one, ast.Call) and script.name(one.func).endswith(".append") for one in script.parents(node)
            )
            steps = first.id in index or (bool(index & words) and not scaled) or (bool(counts) and not index)
            if kept and steps and _begins(last).startswith(f"{first.id}.") and constant(last.right) != 1:
                return True
    return False


def _begins(total: ast.AST) -> str:
    """The first term of a sum, followed by a dot."""
    while isinstance(total, ast.BinOp):
        total = total.left
    return f"{getattr(total, 'id', '')}."


def _counts_each(script: LintedScript, value: ast.AST) -> bool:
    return isinstance(value, ast.Call) and script.name(value.func) == "range" and len(value.args) < 3


def _augments(script: LintedScript, data: ast.expr) -> bool:
    made = [one for one in script.origins(data) if isinstance(one, ast.Call)]
    given = [keyword(one, "transform") for one in made]
    return any(
        part is not None
        and script.mentions(part, re.compile(r"^(Random\w+|AutoAugment|RandAugment|TrivialAugment\w*|ColorJitter)$"))
        for part in given
    )
