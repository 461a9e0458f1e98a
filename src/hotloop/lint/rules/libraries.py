"""The static checks of trainings by a library: Accelerate, Lightning, the Trainer of transformers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.formats.script import Event, LintedScript, constant, has_unpacked, keyword


@lint_rule("half-accelerated", "only a part of a training is given to Accelerate", reads="python")
def half_accelerated(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a plain `loss.backward()`, a loader, optimizer or model that `prepare` does not get, a
    batch or model that is moved by hand, accumulation without `accumulate`, and a loss that is divided twice.

    ## Why it costs
    Without `accelerator.backward` there is no loss scaling and no accumulation. A loader that is not prepared gives all
    processes the same batches: N GPUs do the work of one.

    ## How to tell
    The objects of the loop are followed to the arguments of `prepare`.

    ## What to do
    `model, optimizer, loader, scheduler = accelerator.prepare(...)`, `with accelerator.accumulate(model)`, and
    `accelerator.backward(loss)`.

    ## When it is wrong
    If another file prepares the rest.
    """
    made = script.calls_of("accelerate.Accelerator", ".Accelerator")
    count = keyword(made[0], "gradient_accumulation_steps") if made else None
    grouped = ".accumulate(" in script.text
    for step in script.training if made else ():
        scopes = {step.scope, script.scope(step.loop), *(script.scope(one) for one in script.callers_of(step.loop))}
        calls = [
            one for one in script.calls_of(".prepare") if script.scope(one) in scopes - {script.tree} | {step.scope}
        ]
        prepared = [one for call in calls for arg in call.args for one in (*script.origins(arg), script.name(arg))]
        whole = bool(calls) and not any(isinstance(arg, ast.Starred) for call in calls for arg in call.args)
        loss = script.loss(step.backwards[0].call)
        loaders: list[ast.AST] = [
            one for one in script.origins(script.loop_source(step.loop) or step.loop) if one in script.loaders
        ]
        steppers = [getattr(one.call.func, "value", one.call) for one in step.steps]
        optimizers = [one for part in steppers for one in script.origins(part) if script.role(one) == "optimizer"]
        computed = [loss, *(one.value for one in script.reaching(loss))]
        divided: list[ast.AST] = [
            one for one in computed if isinstance(one, ast.BinOp) and "accum" in script.source(one.right)
        ]
        checks: tuple[tuple[object, ast.AST | Event, Severity, str], ...] = (
            (
                calls and not step.backwards[0].call.args,
                step.backwards[0],
                Severity.HIGH,
                "loss.backward() passes the Accelerator by: no loss scaling, no accumulation",
            ),
            (
                whole and loaders and loaders[0] not in prepared,
                loaders[0] if loaders else loss,
                Severity.HIGH,
                "accelerator.prepare does not get this loader: every process goes through all of the data",
            ),
            (
                whole and optimizers and optimizers[0] not in prepared,
                (optimizers or [loss])[0],
                Severity.HIGH,
                "accelerator.prepare does not get this optimizer: its steps are neither scaled nor skipped",
            ),
            (
                count and constant(count) != 1 and not grouped and "no_sync" not in script.text,
                made[0],
                Severity.MEDIUM,
                "gradient_accumulation_steps does nothing without `with "
                "accelerator.accumulate(model)`: every batch steps",
            ),
            (
                count and divided and grouped,
                divided[0] if divided else loss,
                Severity.MEDIUM,
                "the loss is divided by the accumulation steps twice: accelerator.backward divides it already",
            ),
        )
        for holds, place, severity, message in checks:
            advice = "accelerator.prepare(model, optimizer, loader, scheduler), and accelerator.backward(loss)"
            yield from script.report(bool(holds) and place, severity, message, advice)


@lint_rule("lightning-by-hand", "a LightningModule does by hand what the Trainer does", reads="python")
def lightning_by_hand(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks at the steps of a LightningModule: `backward()` or an optimizer's step under automatic optimization, a loss
    that is detached or not returned, `.cuda()`, outputs that are kept with their graph, metrics without `sync_dist`.

    ## Why it costs
    The Trainer steps as well: gradients are used twice or raise. Without a returned loss it skips every batch. Kept
    outputs fill the memory; a metric without `sync_dist` is that of one rank.

    ## How to tell
    By the methods of the class and what they call.

    ## What to do
    Return the loss with its graph; keep `.detach()`; `self.automatic_optimization = False` for manual optimization.

    ## When it is wrong
    If a base class in another file sets manual optimization.
    """
    devices = [constant(keyword(one, "devices")) for one in script.calls_of(".Trainer") if keyword(one, "devices")]
    for owner in (
        one for one in script.nodes if isinstance(one, ast.ClassDef) and script.derives(one, r"LightningModule$")
    ):
        step = script.method(owner, "training_step")
        manual = "automatic_optimization" in "\n".join(script.lines[owner.lineno - 1 : owner.end_lineno])
        if step is None or not script.is_own(step):
            continue
        returned, checks = script.results(step), list[tuple[object, ast.AST, Severity, str]]()
        for call in (one.call for one in script.events(step)):
            name, shown = script.name(call.func), script.source(call)
            optimizes = name.endswith("backward") or bool(script.stepped(call))
            keeps = (
                name.startswith("self.") and name.endswith(".append") and re.search(r"(?i)loss|out|logit|pred", shown)
            )
            checks += (
                (
                    optimizes and not manual,
                    call,
                    Severity.HIGH,
                    f"{name}() under automatic optimization: the Trainer steps as well",
                ),
                (
                    name.endswith(".cuda"),
                    call,
                    Severity.MEDIUM,
                    "cuda() moves to GPU 0 on every rank: Lightning places batches and modules itself",
                ),
                (
                    keeps and not re.search(r"detach|item\(|cpu\(", shown),
                    call,
                    Severity.MEDIUM,
                    f"{name} keeps the graph of every step: memory grows; detach it",
                ),
            )
        logs: list[ast.Call] = [
            one.call
            for kind in ("validation_step", "test_step")
            if (each := script.method(owner, kind))
            for one in script.events(each)
            if one.name in ("self.log", "self.log_dict")
        ]
        synced = "torchmetrics" in script.text or any(keyword(one, "sync_dist") for one in logs)
        cut = [one for one in returned if re.search(r"\.(item|detach)\(\)$", script.source(one))]
        checks += (
            (
                not manual and not returned,
                step,
                Severity.HIGH,
                "training_step returns nothing: Lightning skips the optimization of every batch",
            ),
            (
                cut,
                cut[0] if cut else step,
                Severity.HIGH,
                "training_step returns a detached loss: there is no gradient, backward raises",
            ),
            (
                logs and not synced and any(one not in (1, "1", ...) for one in devices),
                logs[0] if logs else step,
                Severity.MEDIUM,
                "self.log without sync_dist=True logs the metric of one rank's share; checkpoints are chosen by it",
            ),
        )
        for holds, place, severity, message in checks:
            yield from script.report(bool(holds) and place, severity, message, "leave it to Lightning's Trainer")


OLD = {"evaluation_strategy": "eval_strategy"}


@lint_rule("conflicting-arguments", "arguments of the Trainer contradict each other", reads="python")
def conflicting_arguments(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks at `TrainingArguments(...)` of transformers, and its Trainer: strategies that do not fit
    `load_best_model_at_end`, two half precisions, evaluation without data, logits that are all kept on the GPU.

    ## Why it costs
    Most of them raise ValueError when the job starts, or hours later at the first evaluation. Kept logits of a language
    model fill the GPU during the evaluation.

    ## How to tell
    By the keywords of one call, where none is unpacked, and those of the Trainer that takes it.

    ## What to do
    Set the arguments so that they agree, as the finding says.

    ## When it is wrong
    If a later line changes the arguments.
    """
    for call in script.calls_of(".TrainingArguments", ".Seq2SeqTrainingArguments", ".SFTConfig"):
        args = {OLD.get(one.arg or "", one.arg or ""): one.value for one in call.keywords}
        said = {name: constant(value) for name, value in args.items()}
        trainers = [one for one in script.calls if re.search(r"Trainer$", one[1])]
        trainer = trainers[0][0] if len(trainers) == 1 else None
        evaluates, saves = said.get("eval_strategy", "no"), said.get("save_strategy", "steps")
        best = said.get("load_best_model_at_end") is True
        every, at = said.get("save_steps", 500), said.get("eval_steps", said.get("logging_steps", 500))
        checks = [
            (
                best and evaluates not in (..., saves) and saves not in (..., "best"),
                Severity.HIGH,
                f"load_best_model_at_end needs equal strategies: eval_strategy is {evaluates}, "
                f"save_strategy {saves}: it raises ValueError",
            ),
            (
                best
                and evaluates == saves == "steps"
                and isinstance(every, int)
                and isinstance(at, int)
                and every % at != 0,
                Severity.HIGH,
                f"load_best_model_at_end needs save_steps ({every}) to be a multiple of eval_steps "
                f"({at}): it raises ValueError",
            ),
            (
                said.get("fp16") is True and said.get("bf16") is True,
                Severity.HIGH,
                "fp16 and bf16 exclude each other: it raises ValueError",
            ),
            (
                evaluates in ("steps", "epoch")
                and trainer is not None
                and not has_unpacked(trainer)
                and keyword(trainer, "eval_dataset") is None
                and len(trainer.args) < 5,
                Severity.HIGH,
                "eval_strategy without an eval_dataset: the Trainer raises",
            ),
            (
                trainer is not None
                and keyword(trainer, "compute_metrics") is not None
                and keyword(trainer, "preprocess_logits_for_metrics") is None
                and "eval_accumulation_steps" not in args
                and bool(re.search("CausalLM|MaskedLM", script.text))
                and said.get("predict_with_generate") is not True,
                Severity.MEDIUM,
                "compute_metrics without eval_accumulation_steps or preprocess_logits_for_metrics "
                "keeps the logits of the whole evaluation on the GPU",
            ),
            (
                "dataloader_num_workers" not in args
                and bool(re.search(r"set_transform|with_transform|ImageProcessor|FeatureExtractor", script.text)),
                Severity.MEDIUM,
                "dataloader_num_workers is 0: images or audio are decoded in the training process, and the GPU waits",
            ),
            (
                "remove_unused_columns" not in args
                and ".set_transform(" in script.text + ".set_transform(" * (".with_transform(" in script.text),
                Severity.HIGH,
                "remove_unused_columns drops the columns that set_transform reads: batches are "
                "empty, or it raises KeyError",
            ),
        ]
        for holds, severity, message in checks:
            fault = bool(holds) and not has_unpacked(call) and call
            yield from script.report(fault, severity, message, "set the arguments so that they agree", is_sure=False)
