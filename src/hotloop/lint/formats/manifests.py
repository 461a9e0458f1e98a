"""A YAML file -> Manifests: its Kubernetes objects, their pods and containers, each value with its line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hotloop.lint.files import LintFormat, NotRead, SourceFile, Surroundings

MOST_NESTED = 100
"""Depth up to which the fast reader, which is written in C and recurses, is used."""
GPUS = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "habana.ai/gaudi")
TRAINING_KINDS = ("PyTorchJob", "TrainJob")
_TRAINS = re.compile(
    r"(?i)torchrun|torch\.distributed|accelerate\s+launch|deepspeed|\btrain\w*\.py|finetun\w*\.py|pretrain"
)


@dataclass(frozen=True, slots=True)
class Field:
    """A value of a YAML file. ``line`` is 1-based. What is absent is a Field of None at its parent's line."""

    node: Any
    line: int

    def __getitem__(self, key: str) -> Field:
        """The value under a key of a mapping; a dotted key goes down several."""
        found = self
        for part in key.split("."):
            found = found._child(part)
        return found

    def _child(self, key: str) -> Field:
        if self.is_mapping:
            for name, value in self.node.value:
                if name.value == key:
                    return Field(value, name.start_mark.line + 1)
        return Field(None, self.line)

    @property
    def is_mapping(self) -> bool:
        return self.node is not None and self.node.id == "mapping"

    @property
    def items(self) -> list[tuple[str, Field]]:
        """The entries of a mapping, in order."""
        if not self.is_mapping:
            return []
        pairs = self.node.value
        return [(str(k.value), Field(v, k.start_mark.line + 1)) for k, v in pairs if isinstance(k.value, str)]

    @property
    def elements(self) -> list[Field]:
        """The elements of a list."""
        if self.node is None or self.node.id != "sequence":
            return []
        return [Field(one, one.start_mark.line + 1) for one in self.node.value]

    @property
    def text(self) -> str | None:
        """A scalar as it is written; None for anything else, and for null."""
        is_scalar = self.node is not None and self.node.id == "scalar" and not self.node.tag.endswith(":null")
        return str(self.node.value) if is_scalar else None

    @property
    def number(self) -> float | None:
        try:
            return float(self.text or "")
        except ValueError:
            return None

    def __bool__(self) -> bool:
        return self.node is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod's spec within an object of ``kind``. ``is_training`` is what its commands and its kind show."""

    kind: str
    spec: Field
    owner: Field
    """The object."""

    @property
    def containers(self) -> list[Field]:
        return self.spec["containers"].elements

    @property
    def is_training(self) -> bool:
        return self.kind in TRAINING_KINDS or any(
            _TRAINS.search(" ".join(one.text or "" for key in ("command", "args") for one in container[key].elements))
            for container in self.containers
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifests:
    """The objects of a file. ``save_s`` is how long a checkpoint takes, if that is known."""

    objects: tuple[Field, ...]
    save_s: float | None = None

    @property
    def pods(self) -> Iterator[Pod]:
        """Every pod of every object, those in the templates of controllers and custom resources too."""
        for one in self.objects:
            for spec in find_specs(one):
                yield Pod(kind=one["kind"].text or "", spec=spec, owner=one)


def parse_manifests(file: SourceFile, around: Surroundings) -> Manifests | None:
    """None for YAML that holds no Kubernetes object. Raises NotRead for a template or broken YAML."""
    import yaml

    if re.search(r"(?m)^\s*(-\s*)?\{\{|^[^#\n]*:\s*\{\{", file.text):
        raise NotRead("a template with {{ }}; lint what it renders to")
    fast = getattr(yaml, "CSafeLoader", None)
    loader = fast if fast is not None and _nesting(file.text) <= MOST_NESTED else yaml.SafeLoader
    try:
        documents = [Field(node, node.start_mark.line + 1) for node in yaml.compose_all(file.text, loader) if node]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark is not None else ""
        raise NotRead(f"not YAML{where}: {getattr(error, 'problem', None) or 'it cannot be read'}") from None
    except RecursionError:
        raise NotRead("nested too deeply to be read") from None
    objects = [item for one in documents for item in (one["items"].elements if one["kind"].text == "List" else [one])]
    found = tuple(one for one in objects if one["kind"].text and one["apiVersion"].text)
    return Manifests(objects=found, save_s=around.save_s) if found else None


def _nesting(text: str) -> int:
    """An upper bound of the depth of nested collections."""
    depth = most = 0
    for match in re.finditer(r"[\[{\]}]", text):
        depth = depth + 1 if match.group() in "[{" else max(0, depth - 1)
        most = max(most, depth)
    blocks = 0
    for line in text.split("\n"):
        stripped = line.lstrip(" ")
        if len(line) - len(stripped) > blocks or stripped.startswith(("- ", "? ")):
            lead = re.match(r"(?:[-?:]\s+)*", stripped)
            blocks = max(blocks, len(line) - len(stripped) + (lead.end() if lead else 0))
    return most + blocks


def find_specs(one: Field) -> Iterator[Field]:
    """Mappings with a list of containers, wherever they are; each once, so that aliases cost nothing."""
    seen: set[int] = set()
    waiting = [one]
    while waiting:
        field = waiting.pop()
        if field.node is None or id(field.node) in seen:
            continue
        seen.add(id(field.node))
        if field.is_mapping and any(c.is_mapping and c["name"].text for c in field["containers"].elements):
            yield field
            continue
        waiting += [value for _, value in field.items] + field.elements


def gpu_resources(container: Field, part: str) -> list[tuple[str, Field]]:
    """GPUs under ``resources.limits`` or ``resources.requests``."""
    return [(name, value) for name, value in container[f"resources.{part}"].items if name in GPUS]


KUBERNETES = LintFormat(
    id="kubernetes",
    title="Kubernetes manifest",
    may_name=lambda name: name.lower().endswith((".yaml", ".yml")),
    holds=lambda data: bool(re.search(rb"(?m)^ *kind:", data) and re.search(rb"(?m)^ *apiVersion:", data)),
    parse=parse_manifests,
)
