"""A DeepSpeed JSON file -> Settings."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hotloop.lint.files import LintFormat, NotRead, SourceFile, Surroundings
from hotloop.lint.yaml_fields import Field, read_documents


@dataclass(frozen=True, kw_only=True)
class Settings:
    """``root`` holds what a file sets; ``table`` names the fields that it may have, where they are known."""

    root: Field
    table: str | None

    @property
    def tables(self) -> list[tuple[Field, str]]:
        """What is compared with a table of fields."""
        return [(self.root, self.table)] if self.table else []


def parse_deepspeed(file: SourceFile, around: Surroundings) -> Settings | None:
    """None for JSON that sets nothing. Raises NotRead."""
    text = re.sub(r"(?m)^\s*//.*$", "", file.text.replace("\t", "  "))
    documents = read_documents(text)
    if documents and not documents[0].is_mapping:
        raise NotRead("no mapping of settings")
    return Settings(root=documents[0], table="deepspeed") if documents else None


DEEPSPEED = LintFormat(
    id="deepspeed",
    title="DeepSpeed settings",
    may_name=lambda name: name.lower().endswith(".json"),
    holds=lambda data: bool(re.search(rb'"(zero_optimization|train_micro_batch_size_per_gpu)"\s*:', data[:100_000])),
    parse=parse_deepspeed,
)
