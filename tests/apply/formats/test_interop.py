"""A strategy in other libraries' words: what is said, and what becomes a warning."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from hotloop import export_strategy
from hotloop.apply import TECHNIQUES
from hotloop.apply.interop import FORMATS, ForeignConfig
from hotloop.core.strategy import Choice, Strategy
from hotloop.core.techniques import Setting, Technique

BESIDE = (None, "fsdp2", "compile-model")
"""Techniques beside which another may be said in another way."""


def strategy_of(**choices: dict[str, Any]) -> Strategy:
    return Strategy(choices=tuple(Choice(technique=k.replace("_", "-"), settings=v) for k, v in choices.items()))


def test_accelerate_says_precision_compiling_and_arguments() -> None:
    strategy = strategy_of(
        bf16_autocast={}, compile_model={"backend": "inductor", "mode": "max-autotune"}, fused_optimizer={}
    )
    exported = export_strategy(strategy, "accelerate", accumulate=2)
    assert exported.arguments["Accelerator"] == {"mixed_precision": "bf16", "gradient_accumulation_steps": 2}
    assert exported.arguments["optimizer"] == {"fused": True}
    content = yaml.safe_load(exported.text)
    assert content["mixed_precision"] == "bf16"
    assert content["dynamo_config"]["dynamo_mode"] == "max-autotune"


def test_deepspeed_says_the_stage() -> None:
    strategy = strategy_of(bf16_autocast={}, zero_optimizer={})
    exported = export_strategy(strategy, "deepspeed", batch_size=8, accumulate=2)
    assert json.loads(exported.text)["zero_optimization"] == {"stage": 1}
    assert exported.warnings == ()


@pytest.mark.parametrize("name", list(FORMATS))
def test_what_a_format_cannot_say_is_a_warning(name: str) -> None:
    strategy = Strategy(
        choices=(Choice(technique="gc-freeze"), Choice(technique="bf16-autocast", where=("train.py:3",)))
    )
    said = " ".join(export_strategy(strategy, name).warnings)
    assert f"gc-freeze: {name} has no key for it" in said
    assert f"bf16-autocast: {name} cannot limit it to train.py:3" in said


# -- every setting of every technique: it changes what is written, or a warning names it -----------------------------


def another(setting: Setting) -> Any:
    """A possible value that is not the default; None where there is none."""
    if setting.choices:
        return next((one for one in setting.choices if one != setting.default), None)
    if setting.kind is bool:
        return not setting.default
    if setting.kind is str:
        return "another"
    least, most = setting.least or 0, 1e9 if setting.most is None else setting.most
    value = least if setting.default is None else setting.default + (1 if setting.default + 1 <= most else 0.5)
    return setting.kind(value)


def cases(technique: Technique) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """A setting's name, the technique's settings without it, and with it: alone, and beside each other setting."""
    values = {one.name: another(one) for one in technique.settings}
    for name, value in values.items():
        if value is None:
            continue
        for base in ({}, *({other: one} for other, one in values.items() if other != name and one is not None)):
            yield name, base, {**base, name: value}


def said(exported: ForeignConfig) -> tuple[str, Any]:
    return exported.text, exported.arguments


def named(exported: ForeignConfig, technique: str, key: str = "") -> bool:
    return any(one.startswith((f"{technique}:", f"{technique}.")) and key in one for one in exported.warnings)


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("name", list(FORMATS))
def test_every_setting_of_every_technique_is_written_or_told(name: str, beside: str | None) -> None:
    others = () if beside is None else (Choice(technique=beside),)

    def export(*choices: Choice) -> ForeignConfig:
        return export_strategy(Strategy(choices=(*others, *choices)), name, batch_size=8)

    found, nothing = [], export()
    for technique in TECHNIQUES.values():
        if technique.id == beside:
            continue
        whole = export(Choice(technique=technique.id))
        if said(whole) == said(nothing) and not named(whole, technique.id):
            found.append(technique.id)
        for key, base, settings in cases(technique):
            without = export(Choice(technique=technique.id, settings=base))
            exported = export(Choice(technique=technique.id, settings=settings))
            # Where the whole technique is left out, its settings need no word of their own.
            word = "" if said(exported) == said(nothing) else key
            # Or the format always does what it asks for, and says so where it is not asked for.
            told = named(exported, technique.id, word) or named(without, technique.id, word)
            if said(exported) == said(without) and not told:
                found.append(f"{technique.id}.{key} beside {base}")
    assert found == []
