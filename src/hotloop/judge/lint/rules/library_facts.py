"""Checks of training scripts: what a function or class requires of its arguments, and of others in the same file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.judge.lint.formats.script import ROLES, LintedScript
from hotloop.judge.lint.python_code import constant, keyword

HIGH, MEDIUM = Severity.HIGH, Severity.MEDIUM
TRAINERS = ".Trainer", ".Seq2SeqTrainer", ".SFTTrainer", ".DPOTrainer", ".RewardTrainer", ".GRPOTrainer"
LM = r"For(Causal|Masked)LM|LMHeadModel|ForConditionalGeneration|ForSeq2SeqLM"
IMAGE = r"Normalize|RandomErasing"
TENSOR = r"ToTensor|PILToTensor|ToImage|ToDtype|ConvertImageDtype"


def _is(call: ast.Call, name: str, *values: object) -> bool:
    """Whether a keyword is one of these constants."""
    return keyword(call, name) is not None and constant(keyword(call, name)) in values


FACTS = (
    (
        ("torch.optim.LBFGS",),
        lambda script, call: [
            one
            for one in script.calls_of(".step")
            if call in script.made(one.func.value) and not one.args and not one.keywords
        ],
        HIGH,
        "LBFGS evaluates the loss several times in a step: step() without a closure raises TypeError",
        "optimizer.step(closure)",
    ),
    (
        (".Embedding", ".EmbeddingBag", ".from_pretrained"),
        lambda script, call: [
            call
            for name in {one.rpartition(".")[2] for _, one in script.calls if ROLES["optimizer"].search(one)}
            if _is(call, "sparse", True)
            and name not in ("SGD", "SparseAdam", "Adagrad")
            and not script.has("SparseAdam")
        ],
        HIGH,
        "sparse=True gives sparse gradients, which only SGD, SparseAdam and Adagrad take: the optimizer's first "
        "step raises "
        "RuntimeError",
        "train the embedding with SparseAdam, or set sparse=False",
    ),
    (
        (".CTCLoss", ".ctc_loss"),
        lambda script, call: [
            call
            for name, values in script.assigned.items()
            if re.fullmatch(r"(?i)(self\.|cls\.)?blank(_?id|_?idx|_?index|_?token)?", name)
            and any(constant(one) not in (..., 0, None, "") or "len(" in script.source(one) for one in values)
            and not keyword(call, "blank")
            and len(call.args) < (1 if script.name(call.func).endswith("Loss") else 5)
        ],
        HIGH,
        "CTCLoss takes class 0 as the blank, and this file uses another class as the blank: a letter is the "
        "blank in training, "
        "and the decoder never removes the real one",
        "CTCLoss(blank=BLANK)",
    ),
    (
        (".WeightedRandomSampler",),
        lambda script, call: [call for given in call.args[:1] if _weights_classes(script, given)],
        HIGH,
        "WeightedRandomSampler needs one weight for each sample, and gets one for each class: it draws only the "
        "first few "
        "indices of the dataset",
        "weights = class_weights[labels]",
    ),
    (
        (".TrainingArguments", ".Seq2SeqTrainingArguments", ".SFTConfig", ".DPOConfig", ".RewardConfig"),
        lambda script, call: [
            model
            for model in script.calls_of(".from_pretrained")
            for kind in (keyword(model, "torch_dtype") or keyword(model, "dtype"),)
            if _is(call, "fp16", True)
            and kind is not None
            and (script.name(kind) == "torch.float16" or constant(kind) == "float16")
            and not script.has(r"(?i)peft|lora|load_in_\dbit|quantization_config")
        ],
        HIGH,
        "fp16=True scales gradients with a GradScaler, which needs float32 weights, and the weights are torch.float16: "
        "ValueError (Attempting to unscale FP16 gradients) in the first step",
        "load the model in float32, or use bf16",
    ),
    (
        (".TrainingArguments", ".Seq2SeqTrainingArguments", ".SFTConfig", ".DPOConfig", ".RewardConfig"),
        lambda script, call: [
            call
            for name in ("warmup_ratio", "warmup_steps")
            if _is(call, "lr_scheduler_type", "constant")
            and keyword(call, name) is not None
            and constant(keyword(call, name)) not in (None, 0, 0.0)
        ],
        MEDIUM,
        "lr_scheduler_type='constant' ignores the warmup: the first steps run at the full learning rate",
        "lr_scheduler_type='constant_with_warmup'",
    ),
    (
        (".EarlyStoppingCallback",),
        lambda script, call: [
            call
            for made in [script.calls_of(".TrainingArguments", ".Seq2SeqTrainingArguments", ".SFTConfig")]
            if len(made) == 1
            and all(one.arg is not None for one in made[0].keywords)
            and (not keyword(made[0], "load_best_model_at_end") or _is(made[0], "load_best_model_at_end", False))
            and not script.has(r"metric_for_best_model|load_best_model_at_end\s*=\s*(True|args)")
        ],
        HIGH,
        "EarlyStoppingCallback needs metric_for_best_model and load_best_model_at_end=True: the Trainer raises "
        "or never stops",
        "set both in the TrainingArguments",
    ),
    (
        (".LoraConfig",),
        lambda script, call: [call for _ in "1" if _is(call, "inference_mode", True) and script.calls_of(*TRAINERS)],
        HIGH,
        "inference_mode=True freezes the adapter: nothing trains",
        "inference_mode=False",
    ),
    (
        (".BitsAndBytesConfig",),
        lambda script, call: [
            call for _ in "1" if _is(call, "load_in_4bit", True) and keyword(call, "bnb_4bit_compute_dtype") is None
        ],
        MEDIUM,
        "load_in_4bit computes in float32 by default (bnb_4bit_compute_dtype): several times slower",
        "bnb_4bit_compute_dtype=torch.bfloat16",
    ),
    (
        (".add_tokens",),
        lambda script, call: [
            call
            for _ in "1"
            if script.has(LM)
            and script.calls_of(*TRAINERS, ".backward")
            and not script.has("resize_token_embeddings|vocab_size")
        ],
        HIGH,
        "add_tokens without model.resize_token_embeddings: the ids of new tokens are out of the embedding's "
        "range, and CUDA "
        "fails with a device-side assert",
        "model.resize_token_embeddings(len(tokenizer))",
    ),
    (
        (".DataLoader",),
        lambda script, call: [
            call
            for name in ("persistent_workers", "prefetch_factor")
            if all(one.arg for one in call.keywords)
            and constant(keyword(call, name)) not in (None, False, ...)
            and (keyword(call, "num_workers") is None or constant(keyword(call, "num_workers")) == 0)
            and len(call.args) < 6
            and script.definition(call.func) is None
        ],
        HIGH,
        "persistent_workers and prefetch_factor need num_workers > 0: the DataLoader raises ValueError",
        "set num_workers",
    ),
    (
        (".DataLoader",),
        lambda script, call: [
            call
            for _ in "1"
            if _is(call, "shuffle", True)
            and keyword(call, "sampler") is not None
            and constant(keyword(call, "sampler")) is not None
            and isinstance(keyword(call, "sampler"), (ast.Call, ast.Name))
            and not any(constant(one) is None for one in script.origins(keyword(call, "sampler")))
            and script.role(call) == "loader"
        ],
        HIGH,
        "sampler and shuffle=True exclude each other: the DataLoader raises ValueError",
        "remove shuffle=True",
    ),
    (
        (".interpolate", ".Upsample"),
        lambda script, call: [
            call
            for _ in "1"
            if constant(keyword(call, "align_corners")) in (True, False)
            and (_is(call, "mode", "nearest", "area", "nearest-exact") or keyword(call, "mode") is None)
            and "torch" in script.name(call.func)
            and len(call.args) < 4
        ],
        HIGH,
        "align_corners works only with the linear, bilinear, bicubic and trilinear modes: it raises ValueError",
        "remove align_corners, or set mode='bilinear'",
    ),
    (
        (".Compose",),
        lambda script, call: [
            steps[at]
            for steps in (_list_steps(script, call),)
            for at, one in enumerate(steps)
            if re.search(rf"transforms(\.v2)?\.({IMAGE})$|^({IMAGE})$", script.name(getattr(one, "func", one)))
            and not any(isinstance(each, (ast.Lambda, ast.Name, ast.Starred)) for each in steps)
            and not any(re.search(TENSOR, script.name(getattr(each, "func", each))) for each in steps[:at])
            and any(
                re.search(r"ToTensor$|PILToTensor$", script.name(getattr(each, "func", each))) for each in steps[at:]
            )
        ],
        HIGH,
        "this transform needs a tensor, and ToTensor comes after it: it raises TypeError",
        "put it after ToTensor",
    ),
    (
        (".WebDataset",),
        lambda script, call: [
            call
            for _ in "1"
            if script.has(r"init_process_group|DistributedDataParallel|Accelerator\(")
            and not script.has(r"nodesplitter|split_by_node|resampled|ResampledShards|WORLD_SIZE|world_size|rank\b.*::")
        ],
        HIGH,
        "WebDataset is not split among ranks (nodesplitter): each rank reads all shards, or it raises ValueError",
        "nodesplitter=wds.split_by_node, or resampled=True",
    ),
    (
        (".roc_auc_score", ".average_precision_score", ".log_loss"),
        lambda script, call: [
            call
            for given in call.args[1:2]
            if any(
                re.search(r"(^|\.)(argmax|round|predict)$", script.name(getattr(one, "func", one)))
                for one in script.slice(given)
            )
        ],
        HIGH,
        "this metric needs scores or probabilities, and gets predicted classes (argmax): its value is wrong",
        "pass the probability of the positive class",
    ),
    (
        (".precision_score", ".recall_score", ".roc_auc_score", ".average_precision_score", ".classification_report"),
        lambda script, call: [
            call
            for first, second in [[script.name(one).rpartition(".")[2] for one in (*call.args, call, call)[:2]]]
            if len(call.args) > 1
            and re.search(r"(?i)^(y_?)?(pred\w*|outputs?|scores?|probs?\w*|logits)$|_preds?$", first)
            and re.search(r"(?i)^(y_?)?(true|labels?|targets?|gts?|ground_?truth)$|_(labels?|targets?|true)$", second)
        ],
        HIGH,
        "scikit-learn takes (y_true, y_pred): the arguments are in the wrong order, so precision and recall are "
        "exchanged",
        "pass the labels first",
    ),
    (
        (".reset",),
        lambda script, call: [
            call
            for seed in (keyword(call, "seed"),)
            if isinstance(seed, ast.BinOp)
            and isinstance(seed.op, ast.Mult)
            and isinstance(seed.left, ast.List)
            and len(seed.left.elts) == 1
        ],
        MEDIUM,
        "all environments get the same seed: they start in the same state and draw the same numbers, so the "
        "rollouts are copies",
        "reset(seed=seed): the vector environment gives each its own seed",
    ),
    (
        (".Trainer",),
        lambda script, call: [
            keyword(call, name)
            for name in ("gradient_clip_val", "accumulate_grad_batches")
            if script.has(r"automatic_optimization\s*=\s*False")
            and len([one for one in script.of[ast.ClassDef] if script.derives(one, r"LightningModule$")]) == 1
            and not script.has(r"automatic_optimization\s*=\s*(True|\w+\.)")
            and keyword(call, name) is not None
            and (
                constant(keyword(call, name)) not in (None, 0, 0.0, 1, ...)
                or (constant(keyword(call, name)) == 1.0 and name[0] == "g")
            )
        ],
        HIGH,
        "gradient_clip_val and accumulate_grad_batches need automatic optimization: with automatic_optimization "
        "= False, the "
        "Trainer raises MisconfigurationException",
        "call self.clip_gradients(optimizer, ...) in training_step",
    ),
    (
        (".train",),
        lambda script, call: [
            call
            for _ in "1"
            if _is(call, "resume_from_checkpoint", True)
            and not script.has(r"get_last_checkpoint|checkpoint-|listdir|glob|exists|isdir")
        ],
        HIGH,
        "resume_from_checkpoint=True raises ValueError in the first run, when output_dir has no checkpoint",
        "pass get_last_checkpoint(output_dir), which is None then",
    ),
)
"""(calls, what is faulty there, severity, message, advice)"""


@lint_rule("unmet-requirement", "a call breaks what its library requires", reads="python")
def unmet_requirement(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for calls of torch, transformers, PEFT, Lightning, scikit-learn, Gymnasium and WebDataset whose arguments
    break a requirement of the library: sparse gradients with Adam, the blank of CTCLoss, class weights as sample
    weights, float16 weights with a GradScaler, metrics of the wrong kind of prediction.

    ## Why it costs
    The call raises an error, often only after the data are loaded, or it computes something else without a word.

    ## How to recognize it
    A table lists the requirement of each call; the rule traces arguments to where they are built.

    ## What to do
    Change the argument as the finding says.

    ## When it is wrong
    Ignore the finding if another file replaces the argument.
    """
    for names, find, severity, message, advice in FACTS:
        for call in script.calls_of(*names):
            for place in find(script, call)[:1]:
                yield from script.report(place, severity, message, advice, is_sure=False)


def _list_steps(script: LintedScript, call: ast.Call) -> list[ast.expr]:
    given = script.origins(call.args[0]) if call.args else []
    return given[0].elts if len(given) == 1 and isinstance(given[0], ast.List) else []


COUNTS = re.compile(r"(^|\.)(bincount|value_counts|Counter|compute_class_weight|unique)$")


def _weights_classes(script: LintedScript, given: ast.AST) -> bool:
    """Whether a value is computed from counts of classes without an index or loop over the samples."""
    nodes = script.slice(given)
    counted = [one for one in nodes if isinstance(one, ast.Call) and COUNTS.search(script.name(one.func))]
    inside = {part for one in counted for given in one.args for part in script.slice(given)}
    picks = [
        one for one in nodes if isinstance(one, (ast.Subscript, ast.ListComp, ast.GeneratorExp)) and one not in inside
    ]
    taken = [
        one
        for one in nodes
        if isinstance(one, ast.Call)
        and re.search(r"\.(map|apply|take|gather|index_select|repeat\w*|append|get)$", script.name(one.func))
    ]
    return bool(counted) and not picks and not taken
