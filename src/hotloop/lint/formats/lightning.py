"""A YAML file of Lightning's command line -> Settings."""

from __future__ import annotations

import re

from hotloop.core.manifest_tables import known_fields, read_types
from hotloop.lint.files import LintFormat, SourceFile, Surroundings
from hotloop.lint.formats.deepspeed import Settings
from hotloop.lint.yaml_fields import read_documents


def parse_lightning(file: SourceFile, around: Surroundings) -> Settings | None:
    """None for YAML whose trainer is not Lightning's; fields are known without a ``_target_`` of Hydra."""
    documents = read_documents(file.text)
    root = documents[0] if documents else None
    if root is None:
        return None
    trainer = root["trainer"] or root["fit.trainer"]
    known = known_fields(read_types("lightning")["root"])
    count = sum(name in known for name, _ in trainer.items)
    is_cli = not re.search(r"(?m)_target_|^\s*- _self_|^defaults:|\$\{", file.text) and count * 2 > len(trainer.items)
    is_other = "exp_manager:" in file.text  # of NeMo, which saves by itself
    return Settings(root=trainer, table="lightning" if is_cli else None) if count > 1 and not is_other else None


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
