"""skip-saves: checkpoints without content."""

from __future__ import annotations

from collections.abc import Mapping

from hotloop.core.ablations import Ablation
from hotloop.core.findings import Value
from hotloop.core.techniques import Applied, Call, Context, Effect


class SkipSaves(Ablation):
    """
    ## What it does
    Saves an empty dictionary in place of every checkpoint, so that the files exist but take no time.
    """

    id = "skip-saves"
    summary = "checkpoints are saved without content"
    leaves = "what the script does before and after the save remains, such as collecting the state"
    functions = ("torch.serialization:save", "safetensors.torch:save_file")

    def change_call(self, call: Call, settings: Mapping[str, Value], context: Context) -> Effect:
        name = "obj" if call.name.startswith("torch.") else "tensors"
        if name in call.kwargs:
            call.kwargs[name] = {}
        else:
            call.args = ({}, *call.args[1:])
        return Applied(text="{function} saves an empty dictionary", values={"function": call.function.__name__})
