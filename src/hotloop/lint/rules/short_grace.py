"""short-grace: a pod is killed before its last save can end."""

from __future__ import annotations

from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.core.save_notice import find_notice_s
from hotloop.lint.manifests import Field, Manifests


def _sleep_s(container: Field) -> float | None:
    """Seconds that a preStop hook sleeps; None without a plain sleep."""
    hook = container["lifecycle.preStop"]
    if hook["sleep.seconds"].number is not None:
        return hook["sleep.seconds"].number
    words = " ".join(one.text or "" for one in hook["exec.command"].elements).split()
    following = words[words.index("sleep") + 1 :] if "sleep" in words else []
    return float(following[0]) if following and following[0].isdecimal() else None


@lint_rule("short-grace", "a pod is killed before its last save can end", reads="kubernetes")
def short_grace(manifests: Manifests) -> Iterator[LintFinding]:
    """## What it does
    Compares `terminationGracePeriodSeconds` (30 if it is not set) with what has to happen in it: the sleep of a
    `preStop` hook, and a checkpoint, if `--save-seconds` says how long one takes.

    ## Why it costs
    The whole time, the hook included, counts from the moment of eviction. Then the pod is killed, in the middle of the
    save: steps are lost, and perhaps the file.

    ## How to tell
    The hook sleeps at least as long as the grace period, or a training's save takes longer.

    ## What to do
    Set `terminationGracePeriodSeconds` above hook and save together. Spot nodes may end sooner all the same.

    ## When it is wrong
    If the training saves nothing when it is stopped.
    """
    for pod in manifests.pods:
        grace = pod.spec["terminationGracePeriodSeconds"]
        grace_s = 30.0 if grace.number is None else grace.number
        hooks = [_sleep_s(one) for one in pod.containers]
        hook_s = max([each for each in hooks if each is not None], default=0.0)
        save_s = manifests.save_s if manifests.save_s is not None and pod.is_training else 0.0
        if (hook_s and hook_s >= grace_s) or (save_s and hook_s + save_s > grace_s):
            parts = [f"the preStop hook sleeps {hook_s:g} s"] if hook_s else []
            parts += [f"a save takes {save_s:g} s"] if save_s else []
            yield LintFinding(
                severity=Severity.MEDIUM,
                line=grace.line if grace else pod.spec["containers"].line,
                message=f"killed {grace_s:g} s after the eviction, but {' and '.join(parts)}",
                advice=f"terminationGracePeriodSeconds: {round(hook_s) + (find_notice_s(save_s) if save_s else 30)}",
            )
