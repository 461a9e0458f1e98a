"""A tokenizer.json, or its folder -> the tokenizer that workers load, and the ids that the files must hold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop.core.errors import UsageError

_USUAL_ENDS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|end▁of▁sentence|>")
_MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFile:
    """A fast tokenizer. ``content`` is the text of its JSON; ``ids_count`` is the largest id plus one."""

    path: str
    content: str
    sha256: str
    ids_count: int
    unknown_id: int | None
    library: str

    @property
    def token_type(self) -> str:
        """uint16 if every id fits, else int32: Megatron's choices."""
        return "uint16" if self.ids_count <= 1 << 16 else "int32"


def open_tokenizer(path: str) -> TokenizerFile:
    """Read ``path``: a tokenizer.json or a folder with one. Raises UsageError."""
    file = _find_file(Path(path))
    try:
        with file.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--tokenizer {path} cannot be read: {error.strerror}") from error
    if len(content) > _MOST_BYTES:
        raise UsageError(f"--tokenizer {path} has more than {_MOST_BYTES} bytes; give a tokenizer.json")
    text = _check_json(content, file)
    tokenizer = load_tokenizer(text, str(file))
    ids = tokenizer.get_vocab(with_added_tokens=True)
    if not ids:
        raise UsageError(f"--tokenizer {file}: its vocabulary is empty; give a trained tokenizer")
    import tokenizers

    unknown = getattr(tokenizer.model, "unk_token", None)
    return TokenizerFile(
        path=str(file),
        content=text,
        sha256=hashlib.sha256(content).hexdigest(),
        ids_count=max(ids.values()) + 1,
        unknown_id=ids.get(unknown) if unknown else None,
        library=f"tokenizers {tokenizers.__version__}",
    )


def load_tokenizer(content: str, path: str) -> Any:
    """The tokenizer, without the truncation and padding that its file may request: a corpus is tokenized in full."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UsageError(
            "hotloop tokenize needs tokenizers, which is not installed; run: pip install 'hotloop[data]'"
        ) from None
    try:
        tokenizer = Tokenizer.from_str(content)
    except Exception as error:  # the library raises plain Exception
        raise UsageError(f"--tokenizer {path} is not a tokenizer of the tokenizers library: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def find_end_id(tokenizer: TokenizerFile, word: str | None) -> int:
    """The id of the end-of-sequence token: ``word``, else the token in the tokenizer_config.json next to the file.

    Without either, the only usual name in the vocabulary. Raises UsageError if that is not clear.
    """
    loaded = load_tokenizer(tokenizer.content, tokenizer.path)
    if word is not None:
        found = loaded.token_to_id(word)
        if found is None:
            raise UsageError(f"--eos {word}: the tokenizer has no such token{_list_special(loaded)}")
        return int(found)
    named = _read_configured_end(Path(tokenizer.path).with_name("tokenizer_config.json"))
    candidates = [named] if named else [one for one in _USUAL_ENDS if loaded.token_to_id(one) is not None]
    ids = {loaded.token_to_id(one) for one in candidates}
    if len(ids) != 1 or None in ids:
        raise UsageError(
            f"--append-eos: which token ends a document is not clear; give --eos TOKEN{_list_special(loaded)}"
        )
    return int(ids.pop())


def _find_file(path: Path) -> Path:
    """Raises UsageError, which shows how to convert a slow Python tokenizer."""
    file = path / "tokenizer.json" if path.is_dir() else path
    if not path.exists():
        raise UsageError(f"--tokenizer {path}: no such file; give a tokenizer.json (hotloop does not download any)")
    if not file.is_file() or file.suffix in (".model", ".txt"):
        folder = path if path.is_dir() else path.parent
        raise UsageError(
            f"--tokenizer {path}: no tokenizer.json; convert a slow tokenizer (vocab.json, *.model) once: python -c "
            f"\"from transformers import AutoTokenizer; AutoTokenizer.from_pretrained('{folder}', use_fast=True)"
            f".save_pretrained('{folder}')\""
        )
    return file


def _check_json(content: bytes, file: Path) -> str:
    try:
        text = content.decode("utf-8")
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--tokenizer {file} is not JSON ({error}); give a tokenizer.json") from None
    if not isinstance(parsed, Mapping) or not isinstance(parsed.get("model"), Mapping):
        raise UsageError(f"--tokenizer {file} does not describe a model; give a tokenizer.json")
    if parsed["model"].get("dropout"):
        raise UsageError(
            f"--tokenizer {file} drops merges at random (dropout {parsed['model']['dropout']}), so no two runs "
            'agree; set "dropout" to null in it'
        )
    return text


def _read_configured_end(file: Path) -> str | None:
    try:
        named = json.loads(file.read_text(encoding="utf-8")).get("eos_token")
    except (OSError, ValueError, AttributeError):
        return None
    named = named.get("content") if isinstance(named, dict) else named
    return named if isinstance(named, str) else None


def _list_special(tokenizer: Any) -> str:
    names = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
    return f" (special tokens: {', '.join(names[:20])})" if names else ""
