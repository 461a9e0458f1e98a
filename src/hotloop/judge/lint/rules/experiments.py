"""Checks of training scripts: parts that never train, inverted masks, misleading scores, wrong bootstrapping."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.judge.lint.formats.script import ROLES, LintedScript, LoopStep
from hotloop.judge.lint.python_code import FORS, FUNCTIONS, constant, dotted, keyword

HIGH, MEDIUM = Severity.HIGH, Severity.MEDIUM
FLIPS = re.compile(r"requires_grad_?(\s*=\s*|\()True")


@lint_rule("untrained-part", "a part of the loss or of the model never trains", reads="python")
def untrained_part(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for `torch.autograd.grad` without `create_graph` in a loss, parameters that are unfrozen after the optimizer
    chose the trainable ones, and schedulers under Lightning's manual optimization that nothing steps.

    ## Why it costs
    The term has no gradient, the layers never change, or the learning rate stays: the run costs the same and the model
    is worse.

    ## How to recognize it
    The rule follows the loss backward to the calls that compute it, and the optimizer to its parameters.

    ## What to do
    Use `create_graph=True`, `optimizer.add_param_group`, and `self.lr_schedulers().step()`.

    ## When it is wrong
    Ignore the finding if the part is deliberately left out.
    """
    grads = script.calls_of("torch.autograd.grad") if script.training else []
    plain = [one for one in grads if keyword(one, "create_graph") is None and len(one.args) < 5]
    for step in script.training if plain else ():
        for backward in step.backwards:
            nodes = script.slice(script.loss(backward.call), models=True)
            for call in (one for one in plain if one in nodes):
                yield from script.report(
                    not script.without_gradients(call) and call,
                    HIGH,
                    "torch.autograd.grad without create_graph=True: its result has no gradient, so this term of "
                    "the loss "
                    "(forces, gradient penalty) trains nothing",
                    "create_graph=True (in training)",
                )
    chosen = [
        call
        for call, name in (script.calls if "requires_grad" in script.text else ())
        if ROLES["optimizer"].search(name)
        and call.args
        and any(
            isinstance(one, ast.Attribute) and one.attr == "requires_grad" and isinstance(one.ctx, ast.Load)
            for one in _spread(script, call.args[0])
        )
    ]
    flips = [
        one for one in (*script.of[ast.Assign], *script.of[ast.Expr]) if chosen and FLIPS.search(script.text_of(one))
    ]
    for node in flips if not script.has(r"add_param_group|BackboneFinetuning") else ():
        scope = script.scope(node)
        name = getattr(scope, "name", "")
        in_loop = any(one in {loop for loop, _ in script.epochs} for one in script.loops_around(node))
        later = name.startswith(("on_", "unfreeze")) or (
            in_loop and scope is script.scope(chosen[0]) and node.lineno > chosen[0].lineno
        )
        asks = name.startswith("on_") and script.derives(script.class_of(node), r"LightningModule$|Callback$")
        yield from script.report(
            later and (asks or in_loop) and node,
            MEDIUM,
            "these parameters are unfrozen after the optimizer took only the trainable ones (requires_grad): it never "
            "updates them",
            "give the optimizer all parameters, or call optimizer.add_param_group here",
            is_sure=False,
        )
    manual = (
        [one for one in script.of[ast.ClassDef] if script.derives(one, r"LightningModule$")]
        if script.has(r"automatic_optimization\s*=\s*False")
        else []
    )
    for owner in (
        manual
        if len(manual) == 1 and not script.has(r"lr_schedulers\(\)|sched\w*\.step\(|lr_scheduler\w*\.step\(")
        else ()
    ):
        setup = script.method(owner, "configure_optimizers")
        for call in (
            [one.call for one in script.events(setup) if ROLES["scheduler"].search(one.name)][:1]
            if setup is not None
            else ()
        ):
            yield from script.report(
                call,
                MEDIUM,
                "with automatic_optimization = False, Lightning does not step this scheduler, and the module "
                "does not either: "
                "the learning rate never changes",
                "call self.lr_schedulers().step() in on_train_epoch_end or training_step",
            )


def _spread(script: LintedScript, value: ast.AST) -> list[ast.AST]:
    """The nodes of an expression and of the values bound to its names, with their lambdas."""
    return [part for one in script.said(value) for part in ast.walk(one)][:400]


VALID, IGNORED = "true for what is valid", "true for what is ignored"
POLARITY = {
    "src_key_padding_mask": IGNORED,
    "tgt_key_padding_mask": IGNORED,
    "memory_key_padding_mask": IGNORED,
    "key_padding_mask": IGNORED,
}
"""Arguments of torch's attention -> what a True in their mask means."""
HALF = re.compile(
    r"dtype\s*=\s*(torch\.)?(float16|half)\b|cuda\.amp\.autocast\(\)|autocast\(\s*(device_type\s*=\s*)?[\"']cuda[\"']\s*\)"
)
PRODUCTS = re.compile(r"(^|\.)(matmul|bmm|einsum|baddbmm|mm)$")


def _polarity(script: LintedScript, value: ast.AST) -> str:
    """What a True in a mask means, by the comparison that computes it; empty if that is not known."""
    while (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in ("bool", "to", "cuda")
    ):
        value = value.func.value
    if not isinstance(value, ast.Compare):
        return ""
    text = ast.unparse(value)
    positions = re.search(r"arange|\bpos(itions?)?\b|\brange", text.split("<")[0].split(">")[0]) and re.search(
        r"(?i)len|size", text
    )
    if positions and isinstance(value.ops[0], (ast.Lt, ast.GtE)):
        return VALID if isinstance(value.ops[0], ast.Lt) else IGNORED
    if re.search(r"(?i)pad", text) and isinstance(value.ops[0], (ast.Eq, ast.NotEq)):
        return VALID if isinstance(value.ops[0], ast.NotEq) else IGNORED
    return ""


@lint_rule("wrong-mask", "an attention mask is inverted, or its value does not fit half precision", reads="python")
def wrong_mask(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for `key_padding_mask` arguments that are True for valid positions, and for `masked_fill` with a value beyond
    float16 (-1e9) on scores under float16 autocast.

    ## Why it costs
    An inverted mask makes attention see only the padding, and gives NaN for full rows. A value that does not fit raises
    RuntimeError (value cannot be converted to type at::Half without overflow).

    ## How to recognize it
    The rule follows the mask to the comparison that computes it (`arange < lengths`, `ids != pad`).

    ## What to do
    Pass `~mask`; use `float("-inf")` or `torch.finfo(scores.dtype).min`.

    ## When it is wrong
    Ignore the finding if a name is used for two masks.
    """
    for call in script.of[ast.Call] if "key_padding_mask" in script.text else ():
        for part in (one for one in call.keywords if one.arg in POLARITY):
            given = [
                one
                for one in script.values(part.value)
                if not isinstance(one, (ast.Constant, ast.Name, ast.GeneratorExp, ast.ListComp))
            ] or script.origins(part.value)
            meanings = {_polarity(script, one) for one in given}
            from_tokenizer = (
                dotted(part.value).rpartition(".")[2] == "attention_mask"
                and script.has("okenizer")
                and not script.values(part.value)
            )
            yield from script.report(
                ((meanings == {VALID}) or from_tokenizer) and part.value,
                HIGH,
                f"{part.arg} ignores the positions where it is True, and this mask is True for valid positions: "
                f"the mask is "
                "inverted, and attention sees only padding",
                f"{part.arg}=~{script.source(part.value)}",
                is_sure=False,
            )
    for call in (
        script.calls_of(".masked_fill", ".masked_fill_")
        if script.has("autocast|fp16|half") and script.has(HALF.pattern)
        else ()
    ):
        value = call.args[1] if len(call.args) > 1 else keyword(call, "value")
        number = constant(getattr(value, "operand", value))
        owner = call.func.value if isinstance(call.func, ast.Attribute) else call
        made = [one.value for one in script.reaching(owner)] or [owner]
        half = [
            part
            for one in made
            for part in ast.walk(one)
            if isinstance(getattr(part, "op", None), ast.MatMult)
            or (isinstance(part, ast.Call) and PRODUCTS.search(script.name(part.func)))
        ]
        text = " ".join(map(ast.unparse, (call, *made)))
        yield from script.report(
            isinstance(number, (int, float))
            and number > 65504
            and bool(half)
            and not re.search(r"float\(|float32|bfloat16", text)
            and call,
            HIGH,
            f"masked_fill with {ast.unparse(value) if value is not None else ''} overflows float16, in which "
            f"autocast computes "
            "these scores: it raises RuntimeError in the first step",
            'float("-inf"), or torch.finfo(scores.dtype).min',
            is_sure=False,
        )


CURVES = re.compile(
    r"(^|[._])(f1|f1_score|roc_auc\w*|auroc|auc|average_precision\w*|matthews_corrcoef|cohen_kappa\w*|r2_score|pearson\w*|spearman\w*|fbeta\w*|corpus_bleu|concordance\w*)$"
)
MACRO = re.compile(r"(^|[._])(recall|precision|accuracy|jaccard_index|recall_score|precision_score|jaccard_score)$")
HELD = re.compile(r"(?i)(^|[._])(val|valid|validation|test|eval|dev|held|holdout)(_|\d|out|$)")


@lint_rule("misleading-score", "a score is computed on the wrong data, or averaged wrongly", reads="python")
def misleading_score(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for metrics such as F1 and AUC that are averaged over batches, evaluation on the training dataset, and
    checkpoints chosen on the test set.

    ## Why it costs
    The score says something other than its name: the best checkpoint is chosen by noise or by memory.

    ## How to recognize it
    The rule looks at the loop over a loader in which the metric is collected, and compares what the loaders are given.

    ## What to do
    Compute the metric once over all predictions; hold out data; choose on validation data.

    ## When it is wrong
    Ignore the finding if each batch is one complete group.
    """
    for call, name in (
        script.calls
        if script.has(r"f1|auc|auroc|precision|recall|kappa|corrcoef|r2_score|pearson|spearman|bleu")
        else ()
    ):
        loop = next((one for one in script.loops_around(call) if isinstance(one, FORS)), None)
        around = script.parent(call)
        holder = around if isinstance(around, ast.Call) else script.parent(around) if around is not None else None
        macro = MACRO.search(name) and constant(keyword(call, "average")) == "macro"
        kept = isinstance(around, ast.AugAssign) or any(
            isinstance(one, ast.Call) and script.name(one.func).endswith(".append") for one in (around, holder)
        )
        yield from script.report(
            (CURVES.search(name) or macro)
            and loop is not None
            and script.iterates_loader(loop)
            and kept
            and len(call.args) > 1
            and call,
            MEDIUM,
            f"{name.rpartition('.')[2]} is computed for each batch and averaged: the mean over batches is not the "
            f"metric of the "
            "dataset (classes are absent from a batch)",
            "collect the predictions, or update a torchmetrics object, and compute it once",
        )
    shuffled = [one for one in script.loaders if constant(script.option(one, "shuffle")) is True and one.args]
    for call in (one for one in script.loaders if one.args and one not in shuffled):
        names = [name for name, values in script.assigned.items() if call in values]
        same = [
            one
            for one in shuffled
            if ast.unparse(one.args[0]) == ast.unparse(call.args[0]) and script.scope(one) is script.scope(call)
        ]
        yield from script.report(
            any(HELD.search(one) and "train" not in one for one in names)
            and bool(same)
            and not isinstance(call.args[0], ast.arg)
            and not any(HELD.search(name) for one in same for name, values in script.assigned.items() if one in values)
            and (isinstance(call.args[0], ast.Call) or len(script.reaching(call.args[0])) == 1)
            and call,
            HIGH,
            f"{names[0] if names else ''} has the same data as the training loader: the score measures memory (leak)",
            "hold out data that training never sees",
            is_sure=False,
        )
    for node in script.of[ast.If] if "best" in script.text and "test" in script.text else ():
        test = node.test
        if not (isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Lt, ast.Gt, ast.LtE, ast.GtE))):
            continue
        sides = [dotted(one) for one in (test.left, test.comparators[0])]
        value = next((one for one in sides if re.search(r"(?i)(^|[._])test(_|$)", one) and "best" not in one), "")
        scope = script.scope(node)
        validated = [
            one
            for (home, one) in script.links.bindings
            if home is scope and re.match(r"(?i)(val|valid|validation|dev)(_\w+)?$", one)
        ]
        measured = [
            one
            for one in validated
            if any(
                isinstance(each.value, ast.Call) and script.loops_around(each.statement)
                for each in script.links.bindings[scope, one]
            )
        ]
        saves = any(
            re.search(r"(^|\.)(save|save_pretrained|save_checkpoint|deepcopy)$", script.name(one.func))
            for one in ast.walk(node)
            if isinstance(one, ast.Call)
        )
        yield from script.report(
            bool(value and measured) and any("best" in one for one in sides) and saves and node,
            MEDIUM,
            f"the best checkpoint is chosen on the test set ({value}), although {measured[0] if measured else ''} "
            f"is measured: "
            "the test score is optimistic",
            "choose on the validation metric, and test once at the end",
        )


STORES = re.compile(
    r"(^|\.)(add|push|append|store|store_transition|remember|put|insert|add_transition|add_experience)$"
)
STORAGE = re.compile(r"(?i)buffer|replay|memory|(^|\.)rb$|storage")


@lint_rule("wrong-bootstrap", "a value or policy target of reinforcement learning is computed wrongly", reads="python")
def wrong_bootstrap(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a replay buffer whose done flag includes the time limit, and for a PPO ratio whose old log-probabilities
    come from the policy that is being updated.

    ## Why it costs
    A time limit that counts as a terminal state cuts off the value of the states before it. A ratio that is always 1 is
    never clipped.

    ## How to recognize it
    The rule follows the flags that `env.step` returns, and both terms of the ratio.

    ## What to do
    Store `terminated`; store the log-probabilities of the rollout.

    ## When it is wrong
    Ignore the finding if the task has no time limit.
    """
    for call, name in script.calls if script.has(r"truncat") else ():
        flags = (
            [one for one in call.args if isinstance(one, ast.Name)]
            if STORES.search(name) and STORAGE.search(name.rpartition(".")[0])
            else []
        )
        flags += (
            [one for each in call.args if isinstance(each, ast.Tuple) for one in each.elts if isinstance(one, ast.Name)]
            if STORES.search(name) and STORAGE.search(name.rpartition(".")[0])
            else []
        )
        for flag in flags:
            bound = script.reaching(flag)
            names = [
                {getattr(part, "id", "") for part in ast.walk(one.value)}
                for one in bound
                if _is_either(script, one.value)
            ]
            ends = [
                one
                for one in names
                if any(re.match("term", each) for each in one) and any(re.match("trunc", each) for each in one)
            ]
            stores_both = any(re.search("term|trunc", one.id) for one in flags)
            yield from script.report(
                bool(ends)
                and len(ends) == len(bound)
                and not stores_both
                and script.has(r"1(\.0)?\s*-\s*|gamma|discount")
                and call,
                MEDIUM,
                f"{flag.id} includes truncated: the time limit counts as a terminal state, and the target does "
                "not include the value of the state after it",
                "store terminated as the done flag of the target",
                is_sure=False,
            )
    for call in script.calls_of(".exp") if script.training and "ratio" in script.text else ():
        given = call.args[0] if call.args else getattr(call.func, "value", call)
        if not (isinstance(given, ast.BinOp) and isinstance(given.op, ast.Sub)):
            continue
        loops = script.loops_around(call)
        sides = [script.reaching(one)[:1] for one in (given.left, given.right)]
        if not loops or not all(sides) or re.search(r"(?i)ref", dotted(given.right)):
            continue
        new, old = (one[0].value for one in sides)
        policies = [
            {
                script.name(one.func)
                for one in script.slice(each)
                if isinstance(one, ast.Call) and script.is_model(getattr(one.func, "value", one.func))
            }
            for each in (new, old)
        ]
        yield from script.report(
            script.without_gradients(old) is not None
            and script.within(old, loops[0])
            and script.without_gradients(new) is None
            and bool(policies[0] & policies[1])
            and len(loops) > 1
            and call,
            HIGH,
            f"{dotted(given.right)} is recomputed with the policy that is being updated: the ratio is always 1, "
            f"and nothing is "
            "clipped",
            "store the log-probability of the rollout, and use it as the old one",
            is_sure=False,
        )


def _is_either(script: LintedScript, value: ast.AST) -> bool:
    return (
        (isinstance(value, ast.BoolOp) and isinstance(value.op, ast.Or))
        or (isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr))
        or (isinstance(value, ast.Call) and script.name(value.func).endswith("logical_or"))
    )


@lint_rule("stale-worker-copy", "a dataset changes after its workers have copied it", reads="python")
def stale_worker_copy(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for methods of a dataset that set its attributes in the epoch loop (a curriculum, an epoch), while the
    DataLoader keeps its workers (`persistent_workers=True`).

    ## Why it costs
    The workers keep the copy of the first epoch: the change never reaches a sample.

    ## How to recognize it
    The loader, the dataset and the method are in one file.

    ## What to do
    Use `persistent_workers=False`, or keep the value in shared memory (`torch.tensor(0).share_memory_()`).

    ## When it is wrong
    Ignore the finding if the attribute itself is shared.
    """
    for loader in script.loaders if "persistent_workers" in script.text and script.training else ():
        workers = script.option(loader, "num_workers")
        if (
            constant(script.option(loader, "persistent_workers")) is not True
            or workers is None
            or constant(workers) == 0
            or not loader.args
        ):
            continue
        data = set(script.origins(loader.args[0]))
        for loop in {around for around, step in script.epochs if around is not step.container}:
            for event in script.events(loop):
                made = script.definition(event.call.func) if isinstance(event.call.func, ast.Attribute) else None
                owner = script.links.owners.get(made) if isinstance(made, FUNCTIONS) else None
                sets = isinstance(made, FUNCTIONS) and any(
                    isinstance(one, (ast.Attribute, ast.Tuple))
                    and isinstance(getattr(one, "ctx", None), ast.Store)
                    and ast.unparse(one).lstrip("(").startswith("self.")
                    for one in ast.walk(made)
                )
                same = (
                    sets
                    and isinstance(event.call.func, ast.Attribute)
                    and data & set(script.origins(event.call.func.value))
                )
                shares = owner is not None and re.search(
                    r"share_memory|mp\.Value|multiprocessing|Value\(",
                    script.text_of(owner)
                    if isinstance(owner, ast.ClassDef) and script.is_own(owner)
                    else "share_memory",
                )
                yield from script.report(
                    bool(same) and isinstance(owner, ast.ClassDef) and not shares and event,
                    MEDIUM,
                    f"{event.last}() changes the dataset of this process: persistent_workers keep the copy of the "
                    f"first epoch, and "
                    "never see it",
                    "persistent_workers=False, or keep the value in shared memory",
                )


@lint_rule("unloadable-checkpoint", "a resumed run cannot read its checkpoint", reads="python")
def unloadable_checkpoint(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for checkpoints with an `argparse.Namespace` that `torch.load` reads with its default `weights_only`, and
    for a single checkpoint that is overwritten in place on machines that are preempted.

    ## Why it costs
    Since torch 2.6, `torch.load` refuses classes other than tensors and plain types: each resume fails. A stop while
    the file is written leaves no usable checkpoint.

    ## How to recognize it
    The same file saves and loads.

    ## What to do
    Save `vars(args)` with plain values, and write to a temporary file that `os.replace` renames.

    ## When it is wrong
    Ignore the finding if torch is older than 2.6, or something else keeps copies.
    """
    loads = [one for one in script.calls_of("torch.load") if script.option(one, "weights_only") is None]
    for save in script.calls_of("torch.save") if script.calls_of("torch.load") and script.training else ():
        held = [
            part
            for one in (script.origins(save.args[0]) if save.args else ())
            if isinstance(one, ast.Dict)
            for part in one.values
        ]
        parsed = [
            one for one in held if any(script.name(call.func).endswith(".parse_args") for call in script.made(one))
        ]
        yield from script.report(
            bool(parsed and loads) and not script.has("add_safe_globals|safe_globals") and parsed[0],
            HIGH,
            f"{script.source(parsed[0]) if parsed else ''} is an argparse.Namespace: since torch 2.6, torch.load "
            "(weights_only=True by default) raises UnpicklingError, so each resume fails",
            "save vars(args) with plain values, or load with weights_only=False",
            is_sure=False,
        )
        path = save.args[1] if len(save.args) > 1 else save
        again = [
            one
            for one in script.calls_of("torch.load")
            if one.args and dotted(one.args[0]) == dotted(path) and "?" not in dotted(path)
        ]
        yield from script.report(
            bool(again)
            and bool(script.loops_around(save))
            and script.has(r"(?i)preempt|spot |requeue|SIGTERM|SIGUSR")
            and not script.has(r"os\.replace|\.replace\(|\.rename\(|shutil\.move|os\.rename")
            and save,
            MEDIUM,
            f"the only checkpoint ({dotted(path)}) is overwritten in place: a preemption while it is written "
            f"leaves a truncated "
            "file, and nothing to resume from",
            "write to a temporary file, then os.replace (atomic)",
            is_sure=False,
        )


@lint_rule("uneven-ranks", "ranks get different numbers of batches", reads="python", each="training")
def uneven_ranks(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for DDP training over an IterableDataset that deals its files out by rank (`files[rank::world]`), with nothing
    that evens out the number of batches.

    ## Why it costs
    At the end of the epoch, ranks with more batches wait forever in the all-reduce: the job hangs until a timeout ends
    it.

    ## How to recognize it
    The loop has no `join`, no fixed number of steps and no `break`.

    ## What to do
    Stop all ranks after the same number of steps (`itertools.islice`), or use `with model.join()`.

    ## When it is wrong
    Ignore the finding if all files have the same length and divide evenly.
    """
    source = script.loop_source(training.loop)
    if (
        source is None
        or not script.has(r"rank\s*::")
        or script.has(r"\bjoin\(\)|Join\(|islice|\.repeat\(|\bcycle\(|resampled")
    ):
        return
    loaders = [one for one in script.origins(source) if one in script.loaders]
    data = [made for one in loaders if isinstance(one, ast.Call) and one.args for made in script.made(one.args[0])]
    owners = [script.definition(one.func) for one in data]
    streams = [
        one
        for one in owners
        if isinstance(one, ast.ClassDef)
        and script.derives(one, "IterableDataset$")
        and re.search(r"rank\s*::", script.text_of(one))
        and not re.search(r"while True|drop|min\(", script.text_of(one))
    ]
    leaves = [one for one in ast.walk(training.loop) if isinstance(one, ast.Break)]
    wrapped = any(
        script.role(one.value) == "wrapped" for one in script.of[ast.Attribute] if one.attr == "parameters"
    ) or script.has("DistributedDataParallel")
    yield from script.report(
        bool(streams) and not leaves and wrapped and training.loop,
        HIGH,
        "ranks get different numbers of batches from their files (files[rank::world]): the ones with more wait "
        "forever in "
        "DDP's all-reduce at the end of the epoch",
        "stop all ranks after the same number of steps, or use the Join context manager",
        is_sure=False,
    )
