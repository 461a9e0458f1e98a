"""dockerignore: leave files that git ignores out of the context: data, checkpoints, caches, and its own history."""

from __future__ import annotations

from hotloop.ahead.image.fix import ImageFix, Rewrite
from hotloop.ahead.image.recipe import BuildRecipe
from hotloop.core.findings import Skipped

# fmt: off
KNOWN = frozenset((
    ".venv", "venv", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", "wandb", "mlruns",
    "lightning_logs", "checkpoints", "data", "datasets", "outputs", "runs",
))
# fmt: on
"""Folders that are not source code, for when git cannot say."""
ALWAYS = frozenset((".git", ".hg", "__pycache__"))


def rewrite(recipe: BuildRecipe) -> Rewrite | Skipped:
    """Ignores folders that a COPY copies although git ignores them, except those that the Dockerfile mentions."""
    copied = {path for step in recipe.steps if step.takes_context for path in step.reads}
    folders = {
        "/".join(parts[:count]) for parts in (path.split("/") for path in copied) for count in range(1, len(parts))
    }
    known = recipe.context.ignored
    found = {
        one for one in folders if one.rpartition("/")[2] in ALWAYS or (one in KNOWN if known is None else one in known)
    }
    found = {one for one in found if not any(one.startswith(f"{other}/") for other in found)}
    named = " ".join(step.instruction.script for step in recipe.steps)
    found = {one for one in found if one.rpartition("/")[2] not in named.replace("/", " ").split()}
    if not found:
        return Skipped(reason="no copied folder is ignored by git" if known is not None else "no such folder is copied")
    text = recipe.ignore_text
    text += "" if not text or text.endswith("\n") else "\n"
    return Rewrite(recipe=recipe.with_texts(ignore_text=text + "".join(f"/{name}\n" for name in sorted(found))))


FIX = ImageFix(
    id="dockerignore", title="leave folders that git ignores, and its history, out of the context", rewrite=rewrite
)
