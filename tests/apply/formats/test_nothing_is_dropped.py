"""Every setting of every technique, in every format: it changes what is written, or a warning names it."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from hotloop.apply import TECHNIQUES
from hotloop.apply.foreign import Chosen, ForeignConfig, Format
from hotloop.apply.interop import FORMATS, export_with, import_with
from hotloop.core.strategy import Choice, Strategy
from hotloop.core.techniques import Setting, Technique

BESIDE = (None, "fsdp2", "compile-model")
"""Techniques beside which another may be said in another way."""


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


def dropped(format: Format, techniques: Mapping[str, Technique]) -> list[str]:
    """What the format leaves out without a word."""
    found = []
    for beside in BESIDE:
        others = () if beside is None else (Choice(technique=beside),)

        def export(*choices: Choice, others: tuple[Choice, ...] = others) -> ForeignConfig:
            strategy = Strategy(choices=(*others, *choices))
            return export_with(strategy, format, techniques, batch_size=8, accumulate=None)

        nothing = export()
        for technique in techniques.values():
            if technique.id == beside:
                continue
            whole = export(Choice(technique=technique.id))
            if said(whole) == said(nothing) and not named(whole, technique.id):
                found.append(f"{technique.id} beside {beside}")
            for name, base, settings in cases(technique):
                without = export(Choice(technique=technique.id, settings=base))
                exported = export(Choice(technique=technique.id, settings=settings))
                # Where the whole technique is left out, its settings need no word of their own.
                key = "" if said(exported) == said(nothing) else name
                # Or the format always does what it asks for, and says so where it is not asked for.
                told = named(exported, technique.id, key) or named(without, technique.id, key)
                if said(exported) == said(without) and not told:
                    found.append(f"{technique.id}.{name} beside {beside} and {base}")
    return found


def said(exported: ForeignConfig) -> tuple[str, Any]:
    return exported.text, exported.arguments


def named(exported: ForeignConfig, technique: str, key: str = "") -> bool:
    return any(one.startswith((f"{technique}:", f"{technique}.")) and key in one for one in exported.warnings)


@pytest.mark.parametrize("name", list(FORMATS))
def test_every_setting_of_every_technique_is_written_or_told(name: str) -> None:
    assert dropped(FORMATS[name], TECHNIQUES) == []


def test_a_setting_that_is_dropped_is_found() -> None:
    def write(chosen: Chosen, batch_size: int | None, accumulate: int | None) -> ForeignConfig:
        settings = chosen.take("gc-freeze")
        if settings is not None:
            settings.clear()
        return ForeignConfig(format="forgetful", text="freeze" if settings is not None else "")

    forgetful = Format(id="forgetful", syntax="json", write=write, read=None)
    found = dropped(forgetful, {one: TECHNIQUES[one] for one in ("gc-freeze", "keep-heap", "fsdp2", "compile-model")})
    assert "gc-freeze.every beside None and {}" in found
    assert not [one for one in found if one.startswith("keep-heap")]


@pytest.mark.parametrize("name", ["accelerate", "deepspeed"])
def test_offloading_goes_there_and_back(name: str) -> None:
    strategy = Strategy(choices=(Choice(technique="fsdp2", settings={"cpu_offload": True}),))
    exported = export_with(strategy, FORMATS[name], TECHNIQUES, batch_size=8, accumulate=None)
    back = import_with(exported.text, FORMATS[name], TECHNIQUES, source="theirs")
    choice = back.strategy.get("fsdp2")
    assert choice is not None
    assert choice.settings["cpu_offload"] is True


def test_niceness_of_workers_is_told_in_one_line() -> None:
    workers = Choice(technique="loader-workers", settings={"num_workers": 2, "niceness": 10, "passes": "all"})
    exported = export_with(Strategy(choices=(workers,)), FORMATS["training"], TECHNIQUES, batch_size=8, accumulate=None)
    (line,) = exported.warnings
    assert line.startswith("loader-workers: training has no key for niceness = 10, passes = 'all'; left out")


def test_compensated_weights_are_no_plain_bfloat16_elsewhere() -> None:
    for name in ("lightning", "torchtitan"):
        kept = export_with(
            Strategy(choices=(Choice(technique="bf16-parameters"),)),
            FORMATS[name],
            TECHNIQUES,
            batch_size=8,
            accumulate=None,
        )
        assert "bf16-true" not in kept.text
        assert '"bfloat16"' not in kept.text
        assert any("rounds every update to bfloat16" in one for one in kept.warnings)
