"""Files of settings -> Settings: DeepSpeed's JSON, accelerate's YAML and the trainer of Lightning's command line."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hotloop.core.manifest_tables import known_fields, read_types
from hotloop.lint.files import LintFormat, NotRead, SourceFile, Surroundings
from hotloop.lint.tasks import read_notes
from hotloop.lint.yaml_fields import Field, read_documents


@dataclass(frozen=True, kw_only=True)
class Settings:
    """``root`` holds what a file sets, ``notes`` are its comments; ``tables``: what is compared with which table."""

    root: Field
    notes: str
    tables: tuple[tuple[Field, str], ...]


def parse_settings(file: SourceFile, around: Surroundings) -> Settings | None:
    """None for a file that sets nothing. Raises NotRead."""
    text = re.sub(r"(?m)^\s*//.*$", "", file.text.replace("\t", "  ")) if file.kind == "deepspeed" else file.text
    documents = read_documents(text)
    if documents and not documents[0].is_mapping:
        raise NotRead("no mapping of settings")
    found = [Settings(root=root, notes=read_notes(text), tables=((root, file.kind),)) for root in documents]
    return found[0] if found else None


def parse_lightning(file: SourceFile, around: Surroundings) -> Settings | None:
    """None for YAML whose trainer is not Lightning's; fields are known without a ``_target_`` of Hydra."""
    settings = parse_settings(file, around)
    if settings is None or "exp_manager:" in file.text:  # of NeMo, which saves by itself
        return None
    trainer = settings.root["trainer"] or settings.root["fit.trainer"]
    known = known_fields(read_types("lightning")["root"])
    count = sum(name in known for name, _ in trainer.items)
    is_hydra = re.search(r"(?m)_target_|^\s*- _self_|^defaults:|\$\{", file.text) is not None
    tables = () if is_hydra or count * 2 <= len(trainer.items) else ((trainer, "lightning"),)
    return Settings(root=trainer, notes=settings.notes, tables=tables) if count > 1 else None


DEEPSPEED = LintFormat(
    id="deepspeed",
    title="DeepSpeed settings",
    may_name=lambda name: name.lower().endswith(".json"),
    holds=lambda data: bool(re.search(rb'"(zero_optimization|train_micro_batch_size_per_gpu)"\s*:', data[:100_000])),
    parse=parse_settings,
)
ACCELERATE = LintFormat(
    id="accelerate",
    title="accelerate settings",
    may_name=lambda name: name.lower().endswith((".yaml", ".yml")),
    holds=lambda data: bool(re.search(rb"(?m)^(compute_environment|distributed_type):", data)),
    parse=parse_settings,
    order=2,
)
LIGHTNING = LintFormat(
    id="lightning",
    title="Lightning settings",
    may_name=lambda name: name.lower().endswith((".yaml", ".yml")),
    holds=lambda data: bool(
        re.search(rb"(?m)^ *trainer:", data) and re.search(rb"(?m)^ *(model|data|fit|seed_everything):", data)
    ),
    parse=parse_lightning,
    order=3,
)
