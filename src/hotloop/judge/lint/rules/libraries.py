"""Checks of training scripts that use a library: Accelerate, Lightning, the Trainer of transformers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.judge.lint.formats.script import LintedScript
from hotloop.judge.lint.python_code import constant, has_unpacked, keyword
from hotloop.judge.lint.python_flow import LoopCall
from hotloop.judge.lint.script_words import LENGTHS, find_direction, find_unit


@lint_rule("half-accelerated", "only some of the training objects are passed to Accelerate", reads="python")
def half_accelerated(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a plain `loss.backward()`, for a loader, optimizer or model that is not passed to `prepare`, for a batch
    or model that the code itself moves to a device, for accumulation without `accumulate`, and for a loss that is
    divided twice.

    ## Why it costs
    Without `accelerator.backward`, there is no loss scaling and no accumulation. A loader that is not prepared gives
    every process the same batches, so N GPUs do the work of one.

    ## How to recognize it
    The rule traces the loop's objects to the arguments of `prepare`.

    ## What to do
    Use `model, optimizer, loader, scheduler = accelerator.prepare(...)`, `with accelerator.accumulate(model)`, and
    `accelerator.backward(loss)`.

    ## When it is wrong
    Ignore the finding if another file prepares the rest.
    """
    made = script.calls_of("accelerate.Accelerator", ".Accelerator")
    count = keyword(made[0], "gradient_accumulation_steps") if made else None
    grouped = ".accumulate(" in script.text
    precision = keyword(made[0], "mixed_precision") if made else None
    values = [precision, *script.origins(precision)] if precision is not None else []
    scales = (count and constant(count) != 1) or "fp16" in map(constant, values)
    for step in script.training if made else ():
        scopes = {step.scope, script.scope(step.loop), *(script.scope(one) for one in script.callers_of(step.loop))}
        calls = [
            one for one in script.calls_of(".prepare") if script.scope(one) in scopes - {script.tree} | {step.scope}
        ]
        given = [arg for call in script.calls_of(".prepare") for arg in call.args]
        prepared = [one for arg in given for one in (*script.origins(arg), script.name(arg))]
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
        checks: tuple[tuple[object, ast.AST | LoopCall, Severity, str], ...] = (
            (
                calls and not step.backwards[0].call.args,
                step.backwards[0],
                Severity.HIGH if scales else Severity.LOW,
                "loss.backward() bypasses the Accelerator: no loss scaling, no accumulation",
            ),
            (
                whole and loaders and loaders[0] not in prepared,
                loaders[0] if loaders else loss,
                Severity.HIGH,
                "accelerator.prepare does not get this loader: every process reads all of the data",
            ),
            (
                whole and optimizers and not {*optimizers, *map(script.name, steppers)} & {*prepared},
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
                "the loss is divided by the accumulation steps twice: accelerator.backward already divides it",
            ),
        )
        for holds, place, severity, message in checks:
            advice = "accelerator.prepare(model, optimizer, loader, scheduler), and accelerator.backward(loss)"
            yield from script.report(bool(holds) and place, severity, message, advice)


@lint_rule("lightning-by-hand", "a LightningModule repeats the Trainer's work", reads="python")
def lightning_by_hand(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks in a LightningModule's steps for `backward()` or an optimizer step under automatic optimization, a loss that
    is detached or not returned, `.cuda()`, outputs that keep their graph, and metrics without `sync_dist`.

    ## Why it costs
    The Trainer also steps the optimizer, so gradients are used twice, or the step raises an error. If no loss is
    returned, the Trainer skips every batch. Outputs that keep their graph fill the memory. A metric without `sync_dist`
    covers only one rank.

    ## How to recognize it
    The rule looks at the methods of the class and their calls.

    ## What to do
    Return the loss with its graph, detach the outputs that you keep, and set `self.automatic_optimization = False` for
    manual optimization.

    ## When it is wrong
    Ignore the finding if a base class in another file sets manual optimization.
    """
    if "training_step" not in script.text:
        return
    devices = [constant(keyword(one, "devices")) for one in script.calls_of(".Trainer") if keyword(one, "devices")]
    for owner in (one for one in script.of[ast.ClassDef] if script.derives(one, r"LightningModule$")):
        step = script.method(owner, "training_step")
        manual = "automatic_optimization" in script.text_of(owner)
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
                    "cuda() moves to GPU 0 on every rank: Lightning itself places batches and modules",
                ),
                (
                    keeps and any(script.gradient(one) == "graph" for one in call.args),
                    call,
                    Severity.LOW,  # backward() frees the activations
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
                "training_step returns a detached loss: there is no gradient, and backward raises an error",
            ),
            (
                logs and not synced and any(one not in (1, "1", ...) for one in devices),
                logs[0] if logs else step,
                Severity.MEDIUM,
                "self.log without sync_dist=True logs the metric of one rank's share; it chooses the checkpoints",
            ),
        )
        for holds, place, severity, message in checks:
            yield from script.report(bool(holds) and place, severity, message, "leave it to Lightning's Trainer")


@lint_rule("misused-callbacks", "a Lightning callback, scheduler or list does not fit its module", reads="python")
def misused_callbacks(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for lists that a LightningModule's steps fill but never clear, schedulers without a `monitor` or with an
    `interval` that does not match their length, and callbacks with a metric that is never logged or a `mode` that has
    the wrong direction.

    ## Why it costs
    Lists grow on the GPU over all epochs, and metrics computed from them cover all epochs so far. A scheduler that
    counts batches but steps once per epoch hardly moves. A callback with the wrong `mode` keeps the worst checkpoint.

    ## How to recognize it
    The rule looks at the methods of the class, the result of `configure_optimizers`, and the names that are passed to
    `self.log`.

    ## What to do
    Use `self.outputs.clear()` at the end of each epoch, `{"scheduler": s, "interval": "step"}` for a scheduler that
    counts batches, and `mode="max"` for a metric that rises.

    ## When it is wrong
    Ignore the finding if a base class or another file does this.
    """
    modules = (
        [one for one in script.of[ast.ClassDef] if script.derives(one, r"LightningModule$")]
        if "ightning" in script.text
        else []
    )
    for owner in modules:
        text = script.text_of(owner)
        steps = [script.method(owner, f"{kind}_step") for kind in ("training", "validation", "test")]
        for event in (one for step in steps if step is not None for one in script.events(step)):
            kept = event.name.rpartition(".")[0]
            emptied = re.search(rf"{re.escape(kept)}(\.clear|\[:\]\s*=)|del {re.escape(kept)}", text)
            again = [
                one
                for one in script.values(getattr(event.call.func, "value", owner))
                if script.scope(one) is not script.method(owner, "__init__")
            ]
            yield from script.report(
                event.name.endswith(".append")
                and kept.startswith("self.")
                and kept.count(".") == 1
                and not emptied
                and not again
                and event,
                Severity.MEDIUM,
                f"{kept} grows over all epochs: nothing clears it, so memory grows and its metric is stale",
                f"call {kept}.clear() at the end of each epoch",
            )
        setup = script.method(owner, "configure_optimizers")
        text = script.text_of(setup) if setup is not None else ""
        each_step = re.search(r"interval[\"']?\s*[:=]\s*[\"']step", text)
        own = script.method(owner, "lr_scheduler_step") is not None or "automatic_optimization" in script.text
        for call in (one.call for one in script.events(setup)) if setup is not None and not own else ():
            kind = script.name(call.func).rpartition(".")[2]
            place, field = LENGTHS.get(kind, (9, ""))
            length = keyword(call, field) or (call.args[place] if place < len(call.args) else None)
            unit = find_unit(script, length or keyword(call, "steps_per_epoch"))
            checks = (
                (
                    unit == "batches" and not each_step and "interval" not in re.sub(r"interval\W+epoch", "", text),
                    f"{kind} counts batches, but Lightning steps it once per epoch: the interval is not step",
                ),
                (unit == "epochs" and each_step, f"{kind} counts epochs, but its interval is step: it ends too early"),
                (
                    kind == "ReduceLROnPlateau" and "monitor" not in text,
                    "ReduceLROnPlateau without a monitor: the Trainer raises MisconfigurationException",
                ),
            )
            for message in (one[1] for one in checks if one[0]):
                advice = 'return {"scheduler": scheduler, "interval": "step"}, and "monitor" for a plateau'
                yield from script.report(call, Severity.HIGH, message, advice)
    logs = [*script.calls_of(".log"), *script.calls_of(".log_dict")] if modules else []
    names = [
        constant(one.args[0]) if one.args and one.func.attr == "log" else ...
        for one in logs
        if isinstance(one.func, ast.Attribute)
    ]
    for call in script.calls_of(".ModelCheckpoint", ".EarlyStopping") if "ightning" in script.text else ():
        monitor = constant(
            keyword(call, "monitor")
            or (call.args[0] if call.args and script.name(call.func).endswith("EarlyStopping") else None)
        )
        mode = constant(keyword(call, "mode")) if keyword(call, "mode") else "min"
        opposite = (
            find_direction(monitor) not in ("", mode)
            and mode in ("min", "max")
            and not has_unpacked(call)
            and len(call.args) < 3
        )
        yield from script.report(
            opposite and call,
            Severity.HIGH,
            f"monitor={monitor!r} with mode={mode!r} keeps the worst: the mode has the wrong direction",
            f"mode={find_direction(monitor)!r}",
        )
        logged = {f"{one}{end}" for one in names for end in ("", "_epoch", "_step")} | {"epoch", "step"}
        alone = len(modules) == 1 and ... not in names and bool(names) and len(modules[0].bases) == 1
        yield from script.report(
            alone and isinstance(monitor, str) and monitor not in logged and call,
            Severity.HIGH,
            f"monitor={monitor!r} is never logged: the callback raises at its first check",
            f"self.log({monitor!r}, ...), or monitor a logged metric",
            is_sure=False,
        )


OLD = {"evaluation_strategy": "eval_strategy"}


@lint_rule("conflicting-arguments", "the Trainer's arguments contradict each other", reads="python")
def conflicting_arguments(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks at the `TrainingArguments(...)` and the Trainer of transformers for strategies that do not match
    `load_best_model_at_end`, two half-precision types, evaluation without data, and logits that are all kept on the
    GPU.

    ## Why it costs
    Most of these settings raise ValueError when the job starts, or hours later at the first evaluation. If a language
    model's logits are all kept, they fill the GPU's memory during evaluation.

    ## How to recognize it
    The rule looks at the keyword arguments of a call that unpacks none, and at those of the Trainer that gets its
    result.

    ## What to do
    Make the arguments agree, as the finding says.

    ## When it is wrong
    Ignore the finding if a later line changes the arguments.
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
                "fp16 and bf16 are mutually exclusive: it raises ValueError",
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
                and script.has(r"For(Causal|Masked)LM\.|LMHeadModel\.")
                and not script.has(r"For(Sequence|Token|Image|Question|Audio|Multiple)\w+\.")
                and said.get("predict_with_generate") is not True,
                Severity.HIGH,
                "compute_metrics without eval_accumulation_steps or preprocess_logits_for_metrics "
                "keeps the logits of the entire evaluation on the GPU",
            ),
            (
                trainer is not None
                and "dataloader_num_workers" not in args
                and bool(script.has(r"set_transform|with_transform|ImageProcessor|FeatureExtractor")),
                Severity.MEDIUM,
                "dataloader_num_workers is 0: images or audio are decoded in the training process, and the GPU waits",
            ),
            (
                trainer is not None
                and "remove_unused_columns" not in args
                and ".set_transform(" in script.text + ".set_transform(" * (".with_transform(" in script.text),
                Severity.HIGH,
                "remove_unused_columns drops the columns that set_transform reads: batches are "
                "empty, or it raises KeyError",
            ),
        ]
        metric, higher = said.get("metric_for_best_model"), said.get("greater_is_better")
        default = "min" if str(metric).endswith("loss") else "max"
        side = {"True": "max", "False": "min", "None": default}.get(str(higher), "")
        checks.append(
            (
                side not in ("", find_direction(metric)) and find_direction(metric) != "",
                Severity.HIGH,
                f"greater_is_better has the wrong direction for {metric}: the worst checkpoint is kept as the best",
            )
        )
        for holds, severity, message in checks:
            place = (
                keyword(trainer, "compute_metrics") if trainer is not None and "keeps the logits" in message else call
            )
            fault = bool(holds) and not has_unpacked(call) and place
            yield from script.report(fault, severity, message, "make the arguments agree", is_sure=False)
