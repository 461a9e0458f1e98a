"""True bytes on a wire of Local SGD and DiLoCo, by the counters of the ranks' interfaces."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "compression"))
from test_bytes import load_links

SCRIPT = """
import json, os
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from hotloop.apply.api import apply_strategy
from hotloop.core.strategy import Choice, Strategy

def sent():
    dist.barrier()
    with open(f"/sys/class/net/{os.environ['GLOO_SOCKET_IFNAME']}/statistics/tx_bytes") as file:
        return int(file.read())

dist.init_process_group("gloo")
torch.set_num_threads(1)
found = {}
for name in ("plain", "float32", "bf16"):
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(512, 512) for _ in range(8))))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if name != "plain":
        settings = {"steps": 10, "outer": "nesterov", "send": name}
        choice = Choice(technique="local-updates", settings=settings)
        apply_strategy(Strategy(choices=(choice,)), model=model, optimizer=optimizer)
    for step in range(30):
        if step == 10:  # the first step is DDP's own
            before = sent()
        model(torch.randn(4, 512)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    found[name] = sent() - before
print(json.dumps(found))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def sent_bytes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    links = load_links()
    why = links.why_no_link()
    if why is not None:
        pytest.skip(why)
    script = tmp_path_factory.mktemp("bytes") / "train.py"
    script.write_text(SCRIPT)
    with links.shaped_link() as link:
        run = link.run([sys.executable, str(script)], timeout_s=150)
    assert run.return_codes == (0, 0), run.outputs
    found: dict[str, int] = json.loads(run.outputs[0].splitlines()[-1])
    return found


@pytest.mark.parametrize(("send", "least_ratio", "most_ratio"), [("float32", 0.09, 0.105), ("bf16", 0.045, 0.055)])
def test_ten_local_steps_send_a_tenth(
    sent_bytes: dict[str, int], send: str, least_ratio: float, most_ratio: float
) -> None:
    ratio = sent_bytes[send] / sent_bytes["plain"]
    assert least_ratio <= ratio <= most_ratio, json.dumps(sent_bytes)
