"""Tokenizer files: what is refused, and the token that ends a document."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from hotloop.ahead.data.tokenizer_file import find_end_id, open_tokenizer
from hotloop.core.errors import UsageError

from .small import END, save_tokenizer


def test_the_folder_of_a_tokenizer_is_as_good_as_its_file(tmp_path: Path) -> None:
    file = save_tokenizer(tmp_path)
    assert open_tokenizer(str(tmp_path)) == open_tokenizer(str(file))
    assert open_tokenizer(str(file)).ids_count == 400


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.txt"])
def test_a_slow_tokenizer_is_named_and_the_way_out_shown(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\0")
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(UsageError, match=r"no tokenizer\.json; convert a slow tokenizer .* once: python -c"):
            open_tokenizer(str(path))


def test_the_end_token_is_the_named_the_configured_or_the_only_usual_one(tmp_path: Path) -> None:
    tokenizer = open_tokenizer(str(save_tokenizer(tmp_path)))
    assert find_end_id(tokenizer, None) == 0
    loaded = Tokenizer.from_str(tokenizer.content)
    assert find_end_id(tokenizer, "x") == loaded.token_to_id("x")
    loaded.add_special_tokens(["</s>"])
    loaded.save(str(tmp_path / "tokenizer.json"))
    two = open_tokenizer(str(tmp_path))
    with pytest.raises(UsageError, match=r"is not clear; give --eos TOKEN .special tokens: <.endoftext.>, </s>"):
        find_end_id(two, None)
    with pytest.raises(UsageError, match="--eos <eot>: the tokenizer has no such token"):
        find_end_id(two, "<eot>")
    for value in ("</s>", {"content": "</s>"}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": value}))
        assert find_end_id(two, None) == loaded.token_to_id("</s>")
    assert END != "</s>"
