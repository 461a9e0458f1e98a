"""Strategy <-> the configuration of another training library, with a warning for whatever the other side cannot say."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hotloop.apply import TECHNIQUES, check_strategy
from hotloop.apply.foreign import Chosen, ForeignConfig, Format, Proposal, show
from hotloop.core.catalogue import Catalogue
from hotloop.core.sources import Arguments
from hotloop.core.strategy import Choice, Strategy, StrategyError
from hotloop.core.techniques import Technique

MOST_CHARACTERS = 1 << 16
MOST_DEPTH = 20
INSTEAD = "left out; use `hotloop run --strategy` or change it by hand"

FORMATS: Catalogue[Format] = Catalogue(Format, "hotloop.apply.formats")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedStrategy:
    """A strategy that another library's configuration asks for.

    ``batch_size`` and ``accumulate`` belong to the training rather than to a strategy; None where they are not said.
    ``warnings`` names every key that was left out, and every one that is not quite the same here.
    """

    strategy: Strategy
    batch_size: int | None
    accumulate: int | None
    warnings: tuple[str, ...]


def export_strategy(
    strategy: Strategy, format: str, *, batch_size: int | None = None, accumulate: int | None = None
) -> ForeignConfig:
    """The strategy as ``accelerate``, ``deepspeed``, ``lightning``, ``torchtitan`` or ``training`` says it.

        >>> from hotloop.core.sources import Arguments
    from hotloop.core.strategy import Choice, Strategy
        >>> exported = export_strategy(Strategy(choices=(Choice(technique="bf16-autocast"),)), "lightning")
        >>> dict(exported.arguments["Trainer"])
        {'precision': 'bf16-mixed'}
    """
    return export_with(strategy, FORMATS[format], TECHNIQUES, batch_size=batch_size, accumulate=accumulate)


def export_with(
    strategy: Strategy,
    format: Format,
    techniques: Mapping[str, Technique],
    *,
    batch_size: int | None,
    accumulate: int | None,
) -> ForeignConfig:
    known = set(techniques)
    asked: dict[str, dict[str, Any]] = {}
    default_of: dict[str, dict[str, Any]] = {}
    warnings = []
    for choice in strategy.choices:
        if choice.where:
            warnings.append(
                f"{choice.technique}: {format.id} cannot limit it to {', '.join(choice.where)}; left out; use "
                "`hotloop run --strategy`"
            )
            continue
        defaults = techniques[choice.technique].settings if choice.technique in known else ()
        default_of[choice.technique] = {one.name: one.default for one in defaults}
        settings = default_of[choice.technique] | dict(choice.settings)
        asked[choice.technique] = {key: value for key, value in settings.items() if value is not None}
    by_stage = sorted(techniques.values(), key=lambda one: (one.stage, one.id))
    chosen = Chosen(asked, {one.id: one.source for one in by_stage if isinstance(one.source, Arguments)})
    exported = format.write(chosen, batch_size, accumulate)
    warnings += [
        f"{technique}: {chosen.reasons.get(technique, f'{format.id} has no key for it')}; {INSTEAD}"
        for technique in chosen.waiting
    ]
    for technique, settings in chosen.taken.items():
        # A setting that was left as it is says nothing that the technique itself does not say.
        left = {key: value for key, value in settings.items() if value != default_of[technique].get(key)}
        if left:
            named = ", ".join(f"{key} = {show(value)}" for key, value in left.items())
            warnings.append(f"{technique}: {format.id} has no key for {named}; {INSTEAD}")
    return replace(exported, warnings=(*exported.warnings, *warnings))


def import_strategy(text: str, format: str, *, source: str = "configuration") -> ImportedStrategy:
    """What the configuration ``text`` asks for, as a strategy that hotloop can apply.

    Raises StrategyError where the text is not what its format says, or asks for techniques that conflict. YAML needs
    the extra ``interop``.

    >>> import_strategy('{"precision": "bf16-mixed", "max_epochs": 3}', "lightning").warnings
    ('max_epochs = 3: no hotloop technique corresponds to it; left out',)
    """
    return import_with(text, FORMATS[format], TECHNIQUES, source=source)


def import_with(text: str, format: Format, techniques: Mapping[str, Technique], *, source: str) -> ImportedStrategy:
    if format.read is None:
        readable = ", ".join(one.id for one in FORMATS.values() if one.read is not None)
        raise StrategyError(f"{source}: {format.id} can be written, not read; readable: {readable}")
    if len(text) > MOST_CHARACTERS:
        raise StrategyError(f"{source}: larger than {MOST_CHARACTERS} characters; a configuration must be a short file")
    content = parse_yaml(text, source) if format.syntax == "yaml" else parse_json(text, source)
    if not isinstance(content, dict):
        raise StrategyError(f"{source}: contains {type(content).__name__}; a {format.id} configuration must be a table")
    read = format.read(content)
    warnings = list(read.warnings)
    choices: dict[str, Choice] = {}
    for proposal in read.proposals:
        choice = choice_of(proposal, techniques, warnings)
        if choice is not None:
            before = choices.get(choice.technique)
            settings = {**(before.settings if before else {}), **choice.settings}
            choices[choice.technique] = Choice(technique=choice.technique, settings=settings)
    strategy = Strategy(choices=tuple(choices.values()))
    check_strategy(strategy, techniques, source=source)
    return ImportedStrategy(
        strategy=strategy, batch_size=read.batch_size, accumulate=read.accumulate, warnings=tuple(warnings)
    )


def choice_of(proposal: Proposal, techniques: Mapping[str, Technique], warnings: list[str]) -> Choice | None:
    """The proposal as far as hotloop's techniques can say it; the rest becomes a warning."""
    if proposal.technique not in techniques:
        warnings.append(f"{proposal.key}: hotloop has no technique {proposal.technique}; left out")
        return None
    known = {setting.name for setting in techniques[proposal.technique].settings}
    for key in sorted(proposal.settings.keys() - known):
        warnings.append(f"{proposal.key}: {proposal.technique} has no setting {key}; left out")
    kept = {key: value for key, value in proposal.settings.items() if key in known and value is not None}
    return Choice(technique=proposal.technique, settings=kept)


def parse_json(text: str, source: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StrategyError(f"{source}: not JSON: {error}") from error


def parse_yaml(text: str, source: str) -> Any:
    """YAML without aliases and deep nesting, which can make a short file endless."""
    try:
        import yaml
    except ImportError as error:
        raise StrategyError(
            f"{source}: reading YAML needs PyYAML: {sys.executable} -m pip install 'hotloop[interop]'"
        ) from error
    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise StrategyError(f"{source}: aliases (*name) are not supported; write out their values")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_DEPTH:
                raise StrategyError(f"{source}: not supported: YAML nested deeper than {MOST_DEPTH}")
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise StrategyError(f"{source}: not YAML: {' '.join(str(error).split())}") from error
