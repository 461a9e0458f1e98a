"""A command, variables and a strategy -> the command recorded in a run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hotloop.agent.replay.collector import Collector
from hotloop.change.apply.environment import set_variables
from hotloop.core.recording import OUTCOME_FILE, outcome_to_json
from hotloop.core.strategy import Strategy, strategy_to_mapping

from .child import ChildEnd, attach_environment, run_child
from .run_folder import create_run_folder, write_manifest


def prepare_environment(
    variables: Mapping[str, str],
    run_folder: Path,
    options: Mapping[str, Any],
    collector: Collector,
    strategy: Strategy | None = None,
) -> dict[str, str]:
    """The environment of the child: with the variables that the strategy sets, and for the agent the rest of the
    strategy and where its events go."""
    options = {**options, "address": collector.address, "token": collector.token}
    if strategy is None:
        return attach_environment(variables, run_folder, options)
    changed, effects = set_variables(strategy, variables)
    return attach_environment(
        changed, run_folder, {**options, "variables": effects, "strategy": strategy_to_mapping(strategy)}
    )


def launch_recorded(
    words: Sequence[str], name: str, variables: Mapping[str, str], options: Mapping[str, Any]
) -> tuple[Path, ChildEnd]:
    """Run a command to its end, recorded under a name; returns the run folder and how the command ended."""
    folder, notes = create_run_folder(name, words)
    write_manifest(folder, words, notes)
    collector = Collector(folder / "processes")
    try:
        end = run_child(words, prepare_environment(variables, folder, options, collector), collector.start)
    finally:
        collector.stop()
    text = outcome_to_json(exit_code=end.exit_code, signal=end.signal_number, duration_s=end.duration_s)
    (folder / OUTCOME_FILE).write_text(text)
    return folder, end
