"""Analysis -> recompilation: torch.compile at work again and again after training has settled."""

from __future__ import annotations

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Basis, Finding, Fix, Kind, Numerics, Safety, Value, saving_within
from hotloop.core.rules import rule
from hotloop.diagnose.measured import known_mean, known_places
from hotloop.diagnose.noise import is_material

SHAPE_WORDS = ("size mismatch", "shape", "stride", "size of", "dynamic")


@rule("recompilation", "torch.compile compiles again while training")
def judge_recompilation(analysis: Analysis) -> Finding | None:
    """
    ## What it does
    Finds steps after the warm-up in which torch.compile was at work, and names the guard that failed.

    ## Why it costs
    Compiled code holds for the shapes, types and values that it was made for. When one of them changes, the step
    stops and compiles, for seconds. After some eight times torch gives up on the function and runs it eagerly.

    ## How to tell
    The time that compiling takes within steady steps is measured; the first compilation is warm-up and does not count.
    The guard that failed says what changed: nearly always the length or size of a batch, or a Python number.

    ## What to do
    Keep shapes the same: `drop_last=True` for the last batch of an epoch, padding to a few bucket lengths. Or mark
    what varies: `torch.compile(model, dynamic=True)`, `torch._dynamo.mark_dynamic(x, 1)`. Turn Python numbers that
    change (a step counter, a schedule) into tensors.

    ## When it is wrong
    If the set of shapes is small and all have been seen, compiling stops by itself; the longer the training, the less
    it matters. The evidence says whether it still went on in the second half.
    """
    rank = analysis.lead
    if not rank.compile.used:
        return None
    compile_ns = sum(known_mean(r, "compile_ns") or 0.0 for r in analysis.ranks) / len(analysis.ranks)
    cost_ratio = min(1.0, compile_ns / analysis.step_ns)
    if not is_material(analysis, cost_ratio, judged_fields=("compile_ns",)):
        return None
    column = [max(0, value) for value in rank.columns.get("compile_ns", ())]
    late_ns = sum(column[len(column) // 2 :])
    goes_on = not column or late_ns > 0.1 * sum(column)
    compiles = known_mean(rank, "compiles")
    reasons = rank.compile.recompile_reasons
    evidence: dict[str, Value] = {
        "compile_ns_per_step": round(compile_ns),
        "compiles_in_steady_steps": round((compiles or 0.0) * rank.steady_count),
        "recompiles": rank.compile.recompiles,
        "reasons": [reason for reason, _ in reasons[:3]],
        "goes_on_in_second_half": goes_on,
    }
    by_shape = any(word in reason.lower() for reason, _ in reasons for word in SHAPE_WORDS)
    return Finding(
        rule="recompilation",
        kind=Kind.FAULT,
        title=f"torch.compile compiles again while training: {cost_ratio:.0%} of the time",
        phase="forward",
        cost_ns=round(compile_ns),
        cost_ratio=cost_ratio,
        saving=saving_within(
            cost_ratio, (0.75 if goes_on else 0.3) * cost_ratio, 0.93 * cost_ratio, cost_ratio, Basis.SIMULATED
        ),
        evidence=evidence,
        where=known_places(*(place for _, place in reasons[:3]), rank.compile.where)[:2],
        fix=Fix(
            technique="dynamic-shapes" if by_shape or not reasons else "stable-guards",
            settings={"dynamic": True} if by_shape or not reasons else {},
            safety=Safety.ASK,
            numerics=Numerics.REORDERED,
        ),
        unit=analysis.unit,
        next="hotloop rule recompilation",
    )
