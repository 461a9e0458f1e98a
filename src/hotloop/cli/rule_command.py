"""hotloop rule: explain a rule or a fix, or list all rules."""

from __future__ import annotations

import argparse
import sys

from hotloop.cli.options import option
from hotloop.cli.show import choose_width
from hotloop.core.errors import UsageError, suggest_known

ORDER, SUMMARY = 8, "explain a rule, or list all rules"


ABOUT = {"description": "Explain a rule or a fix."}
OPTIONS = (option("id", nargs="?", help="id of a rule, such as input-bound, or of a fix (default: list all rules)"),)


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.judge.diagnose import RULES
    from hotloop.judge.lint import LINT_RULES
    from hotloop.show.report.manual import manual_to_text

    if arguments.id is None:
        for group in (RULES, LINT_RULES):
            width = max(len(rule_id) for rule_id in group)
            for rule_id in group:
                print(f"{rule_id:{width}}  {group[rule_id].summary}")
            print("\nChecks of hotloop lint:\n" if group is RULES else "", end="")
        print("\nTo read about a rule: hotloop rule ID")
        return 0
    if arguments.id in {*RULES, *LINT_RULES}:
        rule = RULES[arguments.id] if arguments.id in set(RULES) else LINT_RULES[arguments.id]
        page = f"# {rule.id}: {rule.summary}\n\n{rule.manual}"
    else:
        page = _describe_fix(arguments.id)
    print(manual_to_text(page, choose_width(sys.stdout, piped=80)))
    return 0


def _describe_fix(fix_id: str) -> str:
    """The page of a technique, or of an act for the reader, in Markdown. Raises UsageError for an unknown id."""
    from hotloop.change.apply import BY_HAND, TECHNIQUES
    from hotloop.judge.diagnose import RULES
    from hotloop.judge.lint import LINT_RULES

    if fix_id in BY_HAND:
        act = BY_HAND[fix_id]
        return f"# {fix_id}: {act.summary} (by hand)\n\n## What to do\n{act.manual}"
    if fix_id not in TECHNIQUES:
        raise UsageError(f"unknown id {fix_id!r}{suggest_known(fix_id, [*RULES, *LINT_RULES, *TECHNIQUES, *BY_HAND])}")
    technique = TECHNIQUES[fix_id]
    page = f"# {technique.id}: {technique.summary} ({technique.numerics.value})\n\n{technique.manual}"
    if technique.settings:
        page += "\n\n## Settings"
    for setting in technique.settings:
        default = "chosen by hotloop" if setting.default is None else f"default {setting.default!r}"
        page += f"\n- {setting.name} ({default}): {setting.help}"
    return page
