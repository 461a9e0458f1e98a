"""prove: two variants of a training -> which one is faster, by how much, and whether it trains the same model."""

from __future__ import annotations

import math

from hotloop.core.proof import PROOF_SCHEMA, Proof, ProofSide
from hotloop.report.document import Document, Paragraph, Section, Surface, Table, View, write
from hotloop.report.text import UNKNOWN, clean, format_counted, format_duration, format_percent

TONES = {"faster": "best", "same": "good", "slower": "medium", "refused": "high"}
GUARDS = {"passed": "the loss stays as it was", "rejected": "the loss moves", "unknown": "the loss was not checked"}


def describe_proof(proof: Proof, surface: Surface) -> Document:
    rows = tuple(_describe_side(side, proof) for side in (proof.a, proof.b))
    blocks = [
        Paragraph(text=write((_say_ratio(proof), "strong"))),
        Paragraph(text=write(clean(proof.reason))),
        Paragraph(text=write(f"{GUARDS[proof.guard_status]}: {clean(proof.guard_reason)}")),
    ]
    known = [str(proof.machine[name]) for name in ("cpu", "device_name", "torch") if proof.machine.get(name)]
    steps = "" if proof.steps_count is None else f"{proof.steps_count} steps a process, "
    notes = [
        *proof.limits,
        f"holds for: {steps}{', '.join(known) or 'this machine'}; took {format_duration(proof.took_s * 1e9)}",
    ]
    return Document(
        title=_title(proof),
        tone=TONES.get(proof.verdict, "medium"),
        sections=(
            Section(title="", blocks=tuple(blocks)),
            Section(
                title="the two variants",
                blocks=(
                    Table(
                        header=("", f"time per {proof.unit}", "spread", "processes", "command"),
                        rows=rows,
                        left=frozenset({0, 4}),
                    ),
                ),
            ),
            Section(title="", blocks=tuple(Paragraph(text=write((clean(note), "dim"))) for note in notes)),
        ),
    )


def _title(proof: Proof) -> str:
    if proof.verdict == "same":
        return f"same: B and A differ by less than {format_percent(proof.at_least_ratio)}"
    if proof.verdict in ("faster", "slower") and proof.ratio is not None:
        return f"{proof.verdict}: B takes {proof.ratio:.3f} times as long as A"
    return f"{proof.verdict}: {clean(proof.reason)}"


def _say_ratio(proof: Proof) -> str:
    pairs = format_counted(proof.pairs, "pair")
    if proof.ratio is None:
        return f"{pairs} of processes: too few for a ratio"
    bounds = "" if proof.low is None else f" ({proof.low:.3f} to {proof.high:.3f})"
    return f"B's time per {proof.unit} is {proof.ratio:.3f}{bounds} of A's, {pairs} of fresh processes in turn"


def _describe_side(side: ProofSide, proof: Proof) -> tuple[str, ...]:
    times, command = side.times_ns, clean(" ".join(side.command))[:120]
    if not times:
        return side.id, UNKNOWN, UNKNOWN, "0", command
    mean = math.fsum(times) / len(times)
    spread = max(times) / min(times) - 1
    name = f"{command} ({clean(side.change)})" if side.change else command
    return side.id, format_duration(mean), format_percent(spread), str(len(times)), name


PROVE = View(id="prove", type=Proof, schema=PROOF_SCHEMA, describe=describe_proof)
