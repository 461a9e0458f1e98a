"""A place in a source file -> its text, the names that it and its surroundings call, and what kind of work that is."""

from __future__ import annotations

import ast
import os
import stat
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hotloop.core.findings import Where

MAX_SOURCE_BYTES = 2 << 20
MAX_TEXT_LENGTH = 400
MAX_CALLS = 256

LOGGING = "logging"
GRADIENT_LOOP = "gradient-loop"
PREPROCESSING = "preprocessing"
LOSS = "loss"
VALIDATION = "validation"
CHECKPOINT = "checkpoint"
UNKNOWN = "unknown"

_Function = (ast.FunctionDef, ast.AsyncFunctionDef)
_Loop = (ast.For, ast.AsyncFor, ast.While)
_Comprehension = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LOGGING_CALLS = _words(
    "print write writelines writerow writerows add_scalar add_scalars add_histogram add_image add_images add_figure"
    " add_text add_embedding add_video log_metric log_metrics log_dict log_artifact log_param log_params savefig"
    " to_csv set_postfix flush fsync"
)
_LOGGER_METHODS = _words("log debug info warning error critical exception")
_LOGGER_ROOTS = _words("log logger logging logs wandb mlflow neptune comet_ml clearml aim tensorboard loguru")
_MATH_ROOTS = _words("torch math np numpy jnp cmath F")
_SERIALISERS = _words("json csv pickle yaml orjson ujson msgpack")
_READ_BACK_CALLS = _words("item tolist histogram histc histogramdd")
_PARAMETER_ITERATORS = _words("parameters named_parameters param_groups")
_PREPROCESSING_ROOTS = _words(
    "numpy PIL cv2 torchvision torchaudio torchtext albumentations imageio skimage scipy pandas librosa soundfile"
    " transformers tokenizers sentencepiece tiktoken nltk spacy random re"
)
_PREPROCESSING_CALLS = _words(
    "tokenize encode encode_plus batch_encode batch_encode_plus resize crop random_crop center_crop flip hflip vflip"
    " rotate normalize augment pad_sequence collate from_numpy transform preprocess decode_image imread"
)
_CHECKPOINT_CALLS = _words("save_pretrained save_checkpoint save_state save_file save_model state_dict")
_EVALUATION_CALLS = _words("no_grad inference_mode eval")
_TRAINING_CALLS = frozenset(("backward", "step", "zero_grad", "manual_backward", "training_step"))


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed source file. ``aliases`` maps a name of the file to the dotted name that it was imported as."""

    lines: tuple[str, ...]
    tree: ast.Module
    aliases: dict[str, str]


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """Reads each source file once. ``base`` is the folder that relative names start from."""

    base: str = ""
    _modules: dict[str, Module | None] = field(default_factory=dict)

    def module(self, file: str) -> Module | None:
        """The parsed file; None when it cannot be read, is too large, or is no Python."""
        if file not in self._modules:
            text = read_source(os.path.join(self.base, file))
            self._modules[file] = None if text is None else parse_source(text)
        return self._modules[file]

    def text(self, where: Where) -> str:
        """The line as it stands in the file, stripped; empty when it cannot be read."""
        module = self.module(where.file)
        if module is None or where.line > len(module.lines):
            return ""
        return module.lines[where.line - 1].strip()[:MAX_TEXT_LENGTH]

    def calls(self, where: Where) -> tuple[str, ...]:
        """Dotted names called by the statement at the place, then those called around it (see calls_around)."""
        module = self.module(where.file)
        return () if module is None else calls_around(module, where.line)


def read_source(path: str) -> str | None:
    """The text of a regular file of at most MAX_SOURCE_BYTES; None for anything else. Bad bytes are replaced."""
    try:
        # Not blocking: a recording may name a pipe, and opening one would wait for its other end.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except (OSError, ValueError):
        return None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_SOURCE_BYTES:
            return None
        with os.fdopen(os.dup(handle), "rb") as file:
            return file.read(MAX_SOURCE_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        os.close(handle)


def parse_source(text: str) -> Module | None:
    """The file's syntax tree and imports; None when it is no Python, so that no other file's lines are ever shown."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                aliases[name.asname or name.name.split(".")[0]] = name.name if name.asname else name.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for name in node.names:
                aliases[name.asname or name.name] = f"{node.module}.{name.name}"
    return Module(lines=tuple(text.splitlines()), tree=tree, aliases=aliases)


def calls_around(module: Module, line: int) -> tuple[str, ...]:
    """Dotted names called by the statement at ``line``, then by the innermost loop or function around it."""
    path = _path_to(module.tree, line)
    if not path:
        return ()
    statement, scope = path[-1], _scope_of(path)
    names = dict.fromkeys(_called_names(_own_parts(statement)))
    if scope is not None:
        names.update(dict.fromkeys(_called_names([scope])))
    return tuple(names)[:MAX_CALLS]


def classify_statement(module: Module, line: int, leaf: str = "") -> str:
    """What the statement at ``line`` does, from its syntax; ``leaf`` is the innermost frame as 'module:function'.

    One of logging, gradient-loop, preprocessing, loss, validation, checkpoint, unknown. The loop around the statement
    is evidence as well, unless it is the training loop: that one does all of these.
    """
    path = _path_to(module.tree, line)
    if not path:
        return UNKNOWN
    own = _own_parts(path[-1])
    kind = _classify_nodes(module, own)
    if kind is not UNKNOWN:
        return kind
    root = leaf.partition(":")[0].partition(".")[0]
    if root in _SERIALISERS or root in _LOGGER_ROOTS or leaf.startswith("torch.utils.tensorboard"):
        return LOGGING
    if root in _PREPROCESSING_ROOTS:
        return PREPROCESSING
    for node in reversed(path):
        if isinstance(node, _Function):
            return VALIDATION if _is_evaluation(node) else UNKNOWN
        if isinstance(node, _Loop):
            if _last_names(_called_names([node])) & _TRAINING_CALLS:
                return UNKNOWN
            kind = _classify_nodes(module, [node])
            if kind is not UNKNOWN:
                return kind
    return UNKNOWN


def classify_stack(files: SourceFiles, stack: Sequence[Where], leaf: str = "") -> str:
    """The first kind that a frame of the stack shows, from the innermost user frame outwards; else unknown."""
    for depth, where in enumerate(reversed(stack)):
        module = files.module(where.file)
        if module is None:
            continue
        kind = classify_statement(module, where.line, leaf if depth == 0 else "")
        if kind is not UNKNOWN:
            return kind
    return UNKNOWN


def _classify_nodes(module: Module, nodes: Sequence[ast.AST]) -> str:
    calls = [node for part in nodes for node in ast.walk(part) if isinstance(node, ast.Call)]
    named = [(call, name) for call in calls if (name := _dotted(call.func))]
    if any(_is_checkpoint(module, name) for _, name in named):
        return CHECKPOINT
    if any(_is_logging(module, call, name) for call, name in named):
        return LOGGING
    if _touches_gradients(nodes):
        return GRADIENT_LOOP
    last_names = _last_names(name for _, name in named)
    if last_names & {"backward"} or any(_speaks_of_loss(name) for name in last_names):
        return LOSS
    if last_names & _READ_BACK_CALLS:
        return LOGGING
    if any(_is_preprocessing(module, name) for _, name in named):
        return PREPROCESSING
    return UNKNOWN


def _is_checkpoint(module: Module, name: str) -> bool:
    return _last(name) in _CHECKPOINT_CALLS or _resolved(module, name) == "torch.save"


def _is_logging(module: Module, call: ast.Call, name: str) -> bool:
    last, root = _last(name), name.partition(".")[0]
    if last in _LOGGING_CALLS:
        return True
    resolved_root = _resolved(module, name).partition(".")[0]
    if resolved_root in _SERIALISERS and last.startswith(("dump", "writer", "pack")):
        return True
    if last in _LOGGER_METHODS and "." in name and root not in _MATH_ROOTS and resolved_root not in _MATH_ROOTS:
        if last != "log" or root in _LOGGER_ROOTS or resolved_root in _LOGGER_ROOTS:
            return True
        # Without a known logger, only what no logarithm takes: a name or a dict of values.
        first = call.args[0] if call.args else None
        return isinstance(first, (ast.Dict, ast.JoinedStr)) or (
            isinstance(first, ast.Constant) and isinstance(first.value, str)
        )
    return False


def _touches_gradients(nodes: Sequence[ast.AST]) -> bool:
    """Reads or writes ``.grad``, or walks over a model's or an optimizer's parameters in Python."""
    for part in nodes:
        for node in ast.walk(part):
            if isinstance(node, ast.Attribute) and node.attr == "grad":
                return True
            iterables: list[ast.expr] = []
            if isinstance(node, (ast.For, ast.AsyncFor)):
                iterables = [node.iter]
            elif isinstance(node, _Comprehension):
                iterables = [generator.iter for generator in node.generators]
            for iterable in iterables:
                for inner in ast.walk(iterable):
                    if isinstance(inner, ast.Attribute) and inner.attr in _PARAMETER_ITERATORS:
                        return True
    return False


def _is_preprocessing(module: Module, name: str) -> bool:
    root = _resolved(module, name).partition(".")[0]
    return root in _PREPROCESSING_ROOTS or _last(name) in _PREPROCESSING_CALLS or "tokenizer" in name.split(".")


def _speaks_of_loss(name: str) -> bool:
    words = name.lower().split("_")
    return "loss" in words or "criterion" in words or name.endswith("Loss") or name in ("cross_entropy", "nll")


def _is_evaluation(function: ast.AST) -> bool:
    """A function that switches gradients off or the model to eval mode, and never trains."""
    assert isinstance(function, _Function)
    names = _last_names(_called_names([function]))
    names |= {_last(_dotted(d) or "") for d in function.decorator_list}
    return bool(names & _EVALUATION_CALLS) and not names & _TRAINING_CALLS


def _path_to(tree: ast.Module, line: int) -> list[ast.stmt]:
    """The statements that hold ``line``, outermost first; the last one is the statement at the line."""
    path: list[ast.stmt] = []
    children: list[ast.stmt] = list(tree.body)
    while True:
        inside = [s for s in children if _first_line(s) <= line <= (s.end_lineno or s.lineno)]
        if not inside:
            return path
        path.append(inside[-1])
        children = list(_statements_in(inside[-1]))


def _first_line(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", [])
    return int(min([statement.lineno, *(d.lineno for d in decorators)]))


def _statements_in(node: ast.AST) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, (ast.excepthandler, ast.match_case)):
            yield from _statements_in(child)


def _own_parts(statement: ast.stmt) -> list[ast.AST]:
    """A statement without the statements inside it: the header of a loop, a condition, or all of a simple one."""
    return [child for child in ast.iter_child_nodes(statement) if not isinstance(child, (ast.stmt, ast.excepthandler))]


def _scope_of(path: Sequence[ast.stmt]) -> ast.stmt | None:
    """The innermost loop or function around (or at) the last statement of a path."""
    for node in reversed(path):
        if isinstance(node, (*_Loop, *_Function)):
            return node
    return None


def _called_names(nodes: Sequence[ast.AST]) -> Iterator[str]:
    for part in nodes:
        for node in ast.walk(part):
            if isinstance(node, ast.Call):
                name = _dotted(node.func)
                if name:
                    yield name


def _dotted(node: ast.expr) -> str | None:
    """'a.b.c' of an expression; what stands before a call, an index or a literal is left out ('x().y' is 'y')."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts)) or None


def _resolved(module: Module, name: str) -> str:
    root, dot, rest = name.partition(".")
    return module.aliases.get(root, root) + dot + rest


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _last_names(names: Iterator[str] | Sequence[str]) -> set[str]:
    return {_last(name) for name in names}
