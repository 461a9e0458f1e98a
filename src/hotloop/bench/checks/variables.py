"""Environment variables -> checks of those that harm, and of those without effect."""

from __future__ import annotations

from hotloop.bench.host import Host, listed
from hotloop.bench.machine_check import ResultMaker, machine_check
from hotloop.bench.variables import judge_variables, read_variables
from hotloop.core.doctor import MachineCheck
from hotloop.core.redact import redact_text


@machine_check("variables", "variables", "environment variables")
def check_variables(host: Host, answer: ResultMaker) -> tuple[MachineCheck, ...]:
    effects = judge_variables(host)
    checks = []
    for effect in effects:
        if effect.level is None:
            continue
        one = ResultMaker(f"variable-{effect.name.lower().replace('_', '-').strip('-')}", "variables", effect.name)
        measured = f"{effect.name}={redact_text(effect.value)}"[:120]
        make = one.harmful if effect.level == "harmful" else one.warning
        checks.append(make(measured, why=effect.why, fix=effect.fix, variable=effect.name))
    idle = [effect for effect in effects if effect.level is None]
    if idle:
        one = ResultMaker("variables-without-effect", "variables", "variables without effect")
        reasons: dict[str, list[str]] = {}
        for effect in idle:
            reasons.setdefault(effect.why, []).append(effect.name)
        checks.append(
            one.warning(
                listed([effect.name for effect in idle], most=8),
                why="; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items()),
                fix="unset them, or keep them only for machines where they have an effect",
                variables=[effect.name for effect in idle],
            )
        )
    if checks:
        return tuple(checks)
    variables = read_variables()
    known = sum(1 for one in variables if one.name in host.environment)
    text = f"{len(variables)} checked, {known} set" + (", none harmful" if known else "")
    return (answer.good(text, set_count=known),)
