"""Exported strategies are read by the libraries themselves: accelerate and DeepSpeed.

Their environment is `.venv-frameworks` (`make frameworks` creates it); without it these tests skip. They run there as
one program, to which the exports are given as JSON; it answers what each library understood.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hotloop.apply.interop import export_strategy
from hotloop.core.strategy import Choice, Strategy

PYTHON = Path(__file__).parents[3] / ".venv-frameworks" / "bin" / "python"

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-frameworks (make frameworks creates it)")

HEAD = """
import json, os, sys
os.environ["ACCELERATE_USE_CPU"] = "1"
given = json.load(open(sys.argv[1]))
def answer(**values):
    print("\\n" + json.dumps(values, default=str))
"""

PROGRAMS = {
    "accelerate": """
from accelerate import Accelerator
from accelerate.commands.config.config_args import load_config_from_file
open("config.yaml", "w").write(given["text"])
config = load_config_from_file("config.yaml")
made = Accelerator(cpu=True, **given["arguments"]["Accelerator"])
answer(mixed_precision=config.mixed_precision, dynamo=config.dynamo_config, fsdp=config.fsdp_config,
       kind=config.distributed_type.value, made=made.mixed_precision, accumulate=made.gradient_accumulation_steps)
""",
    "deepspeed": """
open("ds.json", "w").write(given["text"])
from deepspeed.runtime.config import DeepSpeedConfig
config = DeepSpeedConfig("ds.json")
answer(autocast=config.torch_autocast_enabled, dtype=config.torch_autocast_dtype, stage=config.zero_optimization_stage,
       batch=config.train_micro_batch_size_per_gpu, accumulate=config.gradient_accumulation_steps)
""",
}


def understood(tmp_path: Path, name: str, *choices: Choice) -> dict[str, Any]:
    """What the library read from the export of these choices, at batch size 8 and two micro-batches."""
    exported = export_strategy(Strategy(choices=choices), name, batch_size=8, accumulate=2)
    given = tmp_path / "given.json"
    given.write_text(json.dumps({"text": exported.text, "arguments": exported.arguments}))
    (tmp_path / "program.py").write_text(HEAD + PROGRAMS[name])
    command = [str(PYTHON), "program.py", str(given)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


BF16 = Choice(technique="bf16-autocast")
COMPILED = Choice(technique="compile-model", settings={"backend": "inductor", "mode": "max-autotune"})


def test_accelerate(tmp_path: Path) -> None:
    found = understood(tmp_path, "accelerate", BF16, COMPILED)
    assert found["mixed_precision"] == found["made"] == "bf16"
    assert found["dynamo"] == {
        "dynamo_backend": "INDUCTOR",
        "dynamo_mode": "max-autotune",
        "dynamo_use_fullgraph": False,
        "dynamo_use_regional_compilation": False,
    }
    assert (found["kind"], found["accumulate"]) == ("NO", 2)


def test_accelerate_with_sharding(tmp_path: Path) -> None:
    sharded = Choice(technique="fsdp2", settings={"reshard_after_forward": True, "cpu_offload": True})
    found = understood(tmp_path, "accelerate", sharded)
    assert found["kind"] == "FSDP"
    assert found["fsdp"]["fsdp_version"] == 2
    assert found["fsdp"]["fsdp_reshard_after_forward"] is True
    assert found["fsdp"]["fsdp_offload_params"] is True


def test_deepspeed(tmp_path: Path) -> None:
    found = understood(tmp_path, "deepspeed", BF16, Choice(technique="zero-optimizer"))
    assert (found["autocast"], found["dtype"], found["stage"]) == (True, "torch.bfloat16", 1)
    assert (found["batch"], found["accumulate"]) == (8, 2)
