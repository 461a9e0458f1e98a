"""The MCP server, used by the protocol's own client."""

from __future__ import annotations

from pathlib import Path

from .frameworks import needs_frameworks, run

pytestmark = needs_frameworks

CLIENT = """
import asyncio, json, os, sys, time
from mcp import ClientSession, StdioServerParameters, stdio_client
async def main():
    server = StdioServerParameters(command=sys.executable, args=["-m", "hotloop", "mcp"], env=dict(os.environ))
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        async def ask(tool, /, **arguments):
            answer = await session.call_tool(tool, arguments)
            return answer.content[0].text
        def command(pid):
            try:
                return open(f"/proc/{pid}/cmdline").read()
            except OSError:
                return ""
        tools = [tool.name for tool in (await session.list_tools()).tools]
        shown = {"tools": tools, "rule": await ask("rule", id="input-bound")}
        shown["missing"] = await ask("report", name="gone")
        shown |= {"lint": await ask("lint", paths=["bad.py"]), "dash": await ask("lint", paths=["--fix"])}
        shown["run"] = await ask("run", command=f"{sys.executable} sleeps.py", limit_s=8)
        workers = "-m torch.distributed.run --standalone --nproc-per-node 2 sleeps.py"
        slow = asyncio.create_task(ask("run", command=f"{sys.executable} {workers}"))
        while not os.path.exists("began"):
            await asyncio.sleep(0.2)
        slow.cancel()
        for _ in range(400):
            await asyncio.sleep(0.2)
            alive = [entry for entry in os.listdir("/proc") if entry.isdigit()]
            if not any("sleeps.py" in command(pid) and os.getcwd() == cwd(pid) for pid in alive):
                break
        shown["alive"] = [pid for pid in alive if "sleeps.py" in command(pid) and os.getcwd() == cwd(pid)]
        print(json.dumps(shown))
def cwd(pid):
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""
asyncio.run(main())
"""
BAD = """
import torch
model, loader = torch.nn.Linear(2, 2), torch.utils.data.DataLoader(data)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""


def test_an_agent_uses_every_kind_of_tool_and_ends_what_it_cancels(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(BAD)
    (tmp_path / "sleeps.py").write_text(
        "import os, time\nif 'RANK' in os.environ: open('began', 'w')\ntime.sleep(300)\n"
    )
    shown = run(tmp_path, CLIENT, head="").shown
    assert set(shown["tools"]) == {"run", "tune", "report", "trace", "diff", "check", "lint", "rule"}
    assert shown["rule"].startswith("exit code 0\n")
    assert shown["missing"].startswith("exit code 2\n")
    assert shown["lint"].startswith("exit code 1\n")
    assert "missing-zero-grad" in shown["lint"]
    assert shown["dash"].startswith("exit code 2\n")
    assert shown["run"].startswith("exit code 130\n")
    assert shown["alive"] == []
