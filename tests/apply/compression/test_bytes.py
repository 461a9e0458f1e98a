"""True bytes on a wire, by the counters of the ranks' interfaces."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = """
import json, os
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from hotloop.change.apply.compression import make_hook, register

def sent():
    dist.barrier()
    with open(f"/sys/class/net/{os.environ['GLOO_SOCKET_IFNAME']}/statistics/tx_bytes") as file:
        return int(file.read())

dist.init_process_group("gloo")
torch.set_num_threads(1)
found = {}
for method in ("plain", "bf16", "int8", "topk", "powersgd"):
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(512, 512) for _ in range(8))), bucket_cap_mb=2)
    if method != "plain":
        register(model, make_hook(method))
    before = sent()
    for _ in range(6):
        model(torch.randn(4, 512)).square().mean().backward()
    found[method] = sent() - before
print(json.dumps(found))
dist.destroy_process_group()
"""


def load_links() -> ModuleType:
    spec = importlib.util.spec_from_file_location("shaped_link", ROOT / "tests" / "zoo" / "shaped_link.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their own module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def sent_bytes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    links = load_links()
    why = links.why_no_link()
    if why is not None:
        pytest.skip(why)
    script = tmp_path_factory.mktemp("bytes") / "train.py"
    script.write_text(SCRIPT)
    with links.shaped_link() as link:
        run = link.run([sys.executable, str(script)], timeout_s=100)
    assert run.return_codes == (0, 0), run.outputs
    found: dict[str, int] = json.loads(run.outputs[0].splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("method", "least_ratio", "most_ratio"),
    [
        ("plain", 1, 1.05),
        ("bf16", 0.5, 0.525),
        ("int8", 0.25, 0.2625),
        ("topk", 0.02, 0.022),
        ("powersgd", 0.015, 0.02),
    ],
)
def test_a_hook_sends_what_it_says(
    sent_bytes: dict[str, int], method: str, least_ratio: float, most_ratio: float
) -> None:
    gradient_bytes = 6 * 8 * (512 * 512 + 512) * 4  # counted, for the link sends some packets again, more of one method
    ratio = sent_bytes[method] / gradient_bytes
    assert least_ratio <= ratio <= most_ratio, json.dumps(sent_bytes)
