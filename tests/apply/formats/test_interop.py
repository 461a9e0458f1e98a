"""A strategy in other libraries' words and back: what is said, and what becomes a warning."""

import json
from typing import Any

import pytest

import hotloop
from hotloop.apply import TECHNIQUES
from hotloop.apply.foreign import to_yaml
from hotloop.apply.interop import FORMATS, export_with, import_with
from hotloop.core.errors import UsageError
from hotloop.core.findings import Numerics, Safety
from hotloop.core.strategy import Choice, Strategy, StrategyError
from hotloop.core.techniques import Setting, Stage, Technique

IDS = (
    "bf16-autocast",
    "fp16-autocast",
    "fused-optimizer",
    "loader-workers",
    "compile-model",
    "fsdp2",
    "zero-optimizer",
    "ddp-settings",
    "activation-checkpointing",
    "gc-freeze",
)
KINDS: dict[str, type] = {
    "num_workers": int,
    "prefetch_factor": int,
    "backend": str,
    "mode": str,
    "find_unused_parameters": bool,
    "cpu_offload": bool,
    "policy": str,
}


def technique(name: str) -> Technique:
    settings = tuple(Setting(name=key, kind=kind, default=None, help="") for key, kind in KINDS.items())
    if name == "fused-optimizer":
        settings += (Setting(name="fused", kind=bool, default=True, help=""),)
    members = {"id": name, "title": name, "numerics": Numerics.EXACT, "safety": Safety.AUTO, "stage": Stage.LOOP}
    members["source"] = TECHNIQUES[name].source
    made: Technique = type(name, (Technique,), {**members, "settings": settings})()
    return made


TABLE = {name: technique(name) for name in IDS}


def strategy_of(**choices: dict[str, Any]) -> Strategy:
    return Strategy(choices=tuple(Choice(technique=k.replace("_", "-"), settings=v) for k, v in choices.items()))


def export(strategy: Strategy, name: str, **options: Any) -> Any:
    return export_with(strategy, FORMATS[name], TABLE, **{"batch_size": None, "accumulate": None, **options})


def read(text: str, name: str) -> Any:
    return import_with(text, FORMATS[name], TABLE, source="theirs")


FAST = strategy_of(bf16_autocast={}, loader_workers={"num_workers": 2, "prefetch_factor": 4})


def test_the_plain_training_block_goes_there_and_back() -> None:
    exported = export(FAST, "training", batch_size=16, accumulate=4)
    assert exported.warnings == ()
    back = read(exported.text, "training")
    assert (back.strategy, back.batch_size, back.accumulate, back.warnings) == (FAST, 16, 4, ())


def test_accelerate_there_and_back() -> None:
    strategy = strategy_of(bf16_autocast={}, compile_model={"backend": "inductor", "mode": "max-autotune"})
    exported = export(strategy, "accelerate", accumulate=2)
    assert exported.arguments["Accelerator"] == {"mixed_precision": "bf16", "gradient_accumulation_steps": 2}
    assert read(exported.text, "accelerate").strategy == strategy


@pytest.mark.parametrize(
    ("offload", "settings"),
    [
        (None, {}),
        ({}, {}),
        ({"device": "none"}, {}),
        ({"device": "cpu"}, {"cpu_offload": True}),
        ({"device": "nvme"}, {"cpu_offload": True}),
    ],
)
def test_deepspeeds_parameters_are_offloaded_where_a_device_is_named(offload: Any, settings: dict[str, bool]) -> None:
    back = read(json.dumps({"zero_optimization": {"stage": 3, "offload_param": offload}}), "deepspeed")
    assert back.strategy.get("fsdp2").settings == settings
    named = "offload_param.device = 'nvme'"
    assert any(named in one for one in back.warnings) is (offload == {"device": "nvme"})


def test_deepspeed_there_and_back() -> None:
    strategy = strategy_of(bf16_autocast={}, zero_optimizer={})
    exported = export(strategy, "deepspeed", batch_size=8, accumulate=2)
    assert json.loads(exported.text)["zero_optimization"] == {"stage": 1}
    assert exported.warnings == ()
    back = read(exported.text, "deepspeed")
    assert (back.strategy, back.batch_size, back.accumulate, back.warnings) == (strategy, 8, 2, ())


def test_lightning_there_and_back() -> None:
    exported = export(strategy_of(bf16_autocast={}, fused_optimizer={}), "lightning", accumulate=3)
    assert exported.arguments["Trainer"] == {"precision": "bf16-mixed", "accumulate_grad_batches": 3}
    assert exported.arguments["optimizer"] == {"fused": True}
    back = read(exported.text, "lightning")
    assert (back.strategy, back.accumulate) == (strategy_of(bf16_autocast={}), 3)


def test_torchtitan_writes_out_what_is_off() -> None:
    text = export(strategy_of(loader_workers={"num_workers": 2}), "torchtitan").text
    assert 'mixed_precision_param = "float32"' in text
    assert 'implementation = "for-loop"' in text
    assert 'mode = "none"' in text
    assert "[training.dataloader]\nnum_workers = 2" in text


@pytest.mark.parametrize("name", list(FORMATS))
def test_what_a_format_cannot_say_is_a_warning(name: str) -> None:
    strategy = Strategy(
        choices=(Choice(technique="gc-freeze"), Choice(technique="bf16-autocast", where=("train.py:3",)))
    )
    said = " ".join(export(strategy, name).warnings)
    assert f"gc-freeze: {name} has no key for it" in said
    assert f"bf16-autocast: {name} cannot limit it to train.py:3" in said


@pytest.mark.parametrize("name", list(FORMATS))
def test_no_choice_is_dropped_silently(name: str) -> None:
    for one in IDS:
        with_it = export(Strategy(choices=(Choice(technique=one, settings={"num_workers": 2}),)), name)
        without = export(Strategy(), name)
        assert (with_it.text, with_it.arguments, with_it.warnings) != (
            without.text,
            without.arguments,
            without.warnings,
        ), one


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ('{"precision": "64-true"}', "lightning", "precision = '64-true'"),
        ('{"max_epochs": 3}', "lightning", "max_epochs = 3"),
        ('{"zero_optimization": {"stage": 2}}', "deepspeed", "stage = 2"),
        ('{"zero_optimization": 7}', "deepspeed", "zero_optimization is 7, not a table"),
        ('{"gradient_accumulation_steps": "auto"}', "deepspeed", "gradient_accumulation_steps is 'auto'"),
        ('{"optimizer": {"type": "Adam"}}', "deepspeed", "optimizer = a table of 1"),
        ("mixed_precision: fp8", "accelerate", "mixed_precision = 'fp8'"),
        ("num_machines: 2", "accelerate", "num_machines = 2"),
        ("training: {lr: 0.1}", "training", "training.lr = 0.1"),
        ("training: {dtype: int8}", "training", "training.dtype = 'int8'"),
        ('{"benchmark": true}', "lightning", "hotloop has no technique cudnn-benchmark"),
    ],
)
def test_what_hotloop_cannot_say_is_a_warning(text: str, name: str, said: str) -> None:
    imported = read(text, name)
    assert any(said in warning for warning in imported.warnings), imported.warnings


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("{", "deepspeed", "theirs: not JSON"),
        ("[1]", "deepspeed", "contains list"),
        ("[" * 60_000, "deepspeed", "theirs: not JSON"),
        ("a: [", "accelerate", "theirs: not YAML"),
        ("[" * 5_000, "accelerate", "theirs: not supported: YAML"),
        ("a: !!python/object/apply:os.system [ls]", "accelerate", "theirs: not YAML"),
        ("a: &a [1]\nb: [*a, *a]", "accelerate", "aliases"),
        ("training: {num_workers: many}", "training", "num_workers is 'many': write a whole number"),
        ("x" * (1 << 16) + "y", "lightning", "larger than"),
        ("", "torchtitan", "torchtitan can be written, not read"),
    ],
)
def test_bad_configurations_are_one_clear_error(text: str, name: str, said: str) -> None:
    with pytest.raises(StrategyError) as raised:
        read(text, name)
    assert said in str(raised.value)


def test_an_unknown_format_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="known: accelerate, deepspeed"):
        hotloop.export_strategy(Strategy(), "keras")


def test_the_public_functions_use_the_catalogue() -> None:
    imported = hotloop.import_strategy('{"precision": "bf16-mixed"}', "lightning")
    assert [choice.technique for choice in imported.strategy.choices] == ["bf16-autocast"]


def test_yaml_strings_are_quoted() -> None:
    assert to_yaml({"a": "no", "b": {"c": True}}) == 'a: "no"\nb:\n  c: true\n'
