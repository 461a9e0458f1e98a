"""What libraries, programs and servers require: pairs of texts; the first breaks it, the second does not."""

from __future__ import annotations

from .texts import LOOP, change

P, D = "python", "dockerfile"
SLIM = "FROM python:3.11-slim-bookworm\n"
CUDA = "FROM nvidia/cuda:12.4.1-runtime-ubuntu22.04\n"
BUILT = (
    "FROM python:3.11-slim AS build\nRUN python -m venv /opt/venv\nWORKDIR /build\nCOPY . .\n"
    "RUN /opt/venv/bin/pip install {}.\nFROM python:3.11-slim\nCOPY --from=build /opt/venv /opt/venv\n"
)
SYNCED = f"{SLIM}COPY uv.lock ./\nRUN uv sync --frozen --no-dev\n"
FORCES = change(
    LOOP,
    "        loss = criterion(model(x), y)\n",
    "        energy, force = compute(model, x)\n        loss = energy.mean() + (force - y).square().mean()\n",
)
FORCES = "import torch\ndef compute(model, x):\n    e = model(x)\n{}    return e, -grad\n" + FORCES
GRAD = "    grad, = torch.autograd.grad(e.sum(), x{})\n"
ATTENTION = """
import torch
from torch import nn
class Net(nn.Module):
    def forward(self, x, lengths):
        mask = torch.arange(x.size(1)) {} lengths[:, None]
        return self.encoder(x, src_key_padding_mask=mask)
"""
SCORES = change(LOOP, "from torch", "from sklearn.metrics import f1_score\nfrom torch")
SCORES += "with torch.no_grad():\n    for x, y in loader:\n        {}\n"
STEPPED = (
    LOOP + "    {} = env.step(a)\n    done = terminated or truncated\n    buffer.add(o, a, r, {})\n    q = 1 - d\n"
)
GROWING = change(
    LOOP,
    "loader = DataLoader(data, shuffle=True, num_workers=2, pin_memory=True)",
    "class Rows(torch.utils.data.Dataset):\n    def set_level(self, level):\n        self.level = level\n"
    "data = Rows()\nloader = DataLoader(data, shuffle=True, num_workers=2, pin_memory=True, persistent_workers={})",
).replace("    for i,", "    data.set_level(epoch)\n    for i,")
NAMED = change(LOOP, "import torch\n", "import argparse, torch\nargs = argparse.ArgumentParser().parse_args()\n")
NAMED += "    torch.save({'model': model.state_dict(), 'args': {}}, 'a.pt')\nsaved = torch.load('a.pt')\n"
DEALT = change(LOOP, "DataLoader, ", "DataLoader, IterableDataset, ").replace(
    "loader = DataLoader(data, shuffle=True, ",
    "class Rows(IterableDataset):\n    def __init__(self):\n        self.files = files[{}]\n"
    "model = nn.parallel.DistributedDataParallel(model)\nloader = DataLoader(Rows(), ",
)
TRAINED = change(LOOP, "import torch\n", "import torch\nimport transformers, gymnasium, sklearn.metrics\n")
SHARED_DATA = change(LOOP, "loader =", "data = read()\nloader =") + "held = DataLoader({}, num_workers=2)\n"

CASES: dict[str, tuple[str, str]] = {
    "unmet-requirement": (
        LOOP + "blank = 27\nctc = nn.CTCLoss()\n",
        LOOP + "blank = 27\nctc = nn.CTCLoss(blank=blank)\nother = nn.CrossEntropyLoss()\n",
    ),
    "untrained-part": (FORCES.format(GRAD.format("")), FORCES.format(GRAD.format(", create_graph=True"))),
    "wrong-mask": (ATTENTION.format("<"), ATTENTION.format(">=")),
    "misleading-score": (SCORES.format("s.append(f1_score(y, model(x)))"), SCORES.format("s.append(model(x))")),
    "wrong-bootstrap": (
        STEPPED.format("o, r, terminated, truncated, _", "done"),
        STEPPED.format("o, r, terminated, truncated, _", "terminated"),
    ),
    "stale-worker-copy": (GROWING.format("True"), GROWING.format("False")),
    "unloadable-checkpoint": (NAMED.replace("{}", "args"), NAMED.replace("{}", "vars(args)")),
    "uneven-ranks": (
        DEALT.format("rank::world"),
        DEALT.format("rank::world") + "        if i > 9:\n            break\n",
    ),
    "unmet-need": (
        f"{SLIM}HEALTHCHECK CMD curl -f localhost\n",
        f"{SLIM}RUN apt-get update && apt-get install -y curl\nHEALTHCHECK CMD curl -f localhost\n",
    ),
    "unreachable-server": (
        f'{SLIM}CMD ["uvicorn", "a:app", "--port", "80"]\n',
        f'{SLIM}CMD ["uvicorn", "a:app", "--host", "0.0.0.0"]\n',
    ),
}

PAIRS: list[tuple[str, str, str, str]] = (
    [
        (P, "unmet-requirement", TRAINED + faulty, TRAINED + near)
        for faulty, near in (
            ("e = nn.Embedding(9, 2, sparse=True)\no = optim.AdamW(e.parameters())\n", "e = nn.Embedding(9, 2)\n"),
            (
                "o = optim.LBFGS(model.parameters())\no.step()\n",
                "o = optim.LBFGS(model.parameters())\no.step(closure)\n",
            ),
            (
                "w = 1 / torch.bincount(y)\ns = torch.utils.data.WeightedRandomSampler(w, 9)\n",
                "w = 1 / torch.bincount(y)\ns = torch.utils.data.WeightedRandomSampler(w[y], 9)\n",
            ),
            (
                "transformers.TrainingArguments('o', fp16=True)\nm = A.from_pretrained(b, torch_dtype=torch.float16)\n",
                "transformers.TrainingArguments('o', fp16=True)\nm = A.from_pretrained(b, torch_dtype=torch.float32)\n",
            ),
            (
                "transformers.TrainingArguments('o', lr_scheduler_type='constant', warmup_steps=9)\n",
                "transformers.TrainingArguments('o', lr_scheduler_type='constant_with_warmup', warmup_steps=9)\n",
            ),
            (
                "c = transformers.BitsAndBytesConfig(load_in_4bit=True)\n",
                "c = transformers.BitsAndBytesConfig(load_in_8bit=True)\n",
            ),
            ("l = DataLoader(d, 2, prefetch_factor=2)\n", "l = DataLoader(d, 2, num_workers=1, prefetch_factor=2)\n"),
            ("l = DataLoader(d, shuffle=True, sampler=S(d))\n", "l = DataLoader(d, shuffle=True, sampler=None)\n"),
            (
                "z = nn.functional.interpolate(x, mode='nearest', align_corners=True)\n",
                "z = nn.functional.interpolate(x, mode='bilinear', align_corners=True)\n",
            ),
            (
                "t = transforms.Compose([transforms.Normalize(0, 1), transforms.ToTensor()])\n",
                "t = transforms.Compose([transforms.ToTensor(), transforms.Normalize(0, 1)])\n",
            ),
            (
                "s = sklearn.metrics.roc_auc_score(y, z.argmax(1))\n",
                "s = sklearn.metrics.roc_auc_score(y, z[:, 1])\n",
            ),
            ("s = sklearn.metrics.recall_score(preds, labels)\n", "s = sklearn.metrics.recall_score(labels, preds)\n"),
            ("o = envs.reset(seed=[seed] * 8)\n", "o = envs.reset(seed=seed)\n"),
        )
    ]
    + [
        (
            P,
            "untrained-part",
            FORCES.format(GRAD.format(", retain_graph=True")),
            FORCES.format(GRAD.format("") + "    grad = grad.detach()\n"),
        ),
        (P, "misleading-score", SHARED_DATA.format("data"), SHARED_DATA.format("other")),
    ]
    + [
        (D, rule, faulty, near)
        for rule, faulty, near in (
            ("unmet-need", BUILT.format("-e "), BUILT.format("")),
            ("unmet-need", BUILT.format("-e "), BUILT.format("-e ") + "COPY . /build\n"),
            (
                "unmet-need",
                f"{CUDA}RUN pip3 install --no-cache-dir deepspeed==0.16.2\n",
                "FROM nvidia/cuda:12.4.1-devel-ubuntu22.04\nRUN pip3 install --no-cache-dir deepspeed==0.16.2\n",
            ),
            (
                "unmet-need",
                f"{CUDA}RUN pip3 install --no-cache-dir onnxruntime-gpu==1.20.1\n",
                f"{CUDA}RUN pip3 install --no-cache-dir onnxruntime-gpu==1.20.1 torch==2.5.1\n",
            ),
            (
                "unmet-need",
                f"{SLIM}ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility\nRUN pip install PyNvVideoCodec==2.0\n",
                f"{SLIM}ENV NVIDIA_DRIVER_CAPABILITIES=compute,video\nRUN pip install PyNvVideoCodec==2.0\n",
            ),
            (
                "unmet-need",
                f"{SLIM}RUN pip install --no-cache-dir librosa==0.10 && useradd -r app\nUSER app\n",
                f"{SLIM}RUN pip install --no-cache-dir librosa==0.10 && useradd -m app\nUSER app\n",
            ),
            (
                "unmet-need",
                f"{SLIM}ENV MUJOCO_GL=egl\n",
                f"{SLIM}RUN apt-get update && apt-get install -y libegl1\nENV MUJOCO_GL=egl\n",
            ),
            (
                "unmet-need",
                f"{CUDA}RUN apt-get update && apt-get install -y libnvidia-gl-535\n",
                f"{CUDA}RUN apt-get update && apt-get install -y libgl1\n",
            ),
            (
                "failing-step",
                f"{CUDA}RUN git clone -b v1.0 https://huggingface.co/a/b\n",
                f"{CUDA}RUN apt-get update && apt-get install -y git-lfs && git clone -b v1.0 https://huggingface.co/a/b\n",
            ),
            (
                "unmet-need",
                f"{CUDA}RUN hf download openai/whisper-large-v3\n",
                f"{CUDA}RUN hf download openai/whisper-large-v3 --include '*.safetensors'\n",
            ),
            (
                "unmet-need",
                f'{SYNCED}CMD ["uv", "run", "train"]\n',
                f'{SYNCED}CMD ["uv", "run", "--no-sync", "train"]\n',
            ),
            (
                "unreachable-server",
                f"{SLIM}CMD gunicorn --bind 127.0.0.1:80 a:app\n",
                f"{SLIM}CMD exec gunicorn --bind 0.0.0.0:80 a:app\n",
            ),
            (
                "unreachable-server",
                f"{SLIM}CMD exec flask --app a run\n",
                f"{SLIM}CMD exec flask --app a run -h 0.0.0.0\n",
            ),
            (
                "broken-command",
                f'{CUDA}ENV CUDA_VISIBLE_DEVICES=0\nCMD ["torchrun", "--nproc-per-node=gpu", "t.py"]\n',
                f'{CUDA}ENV OMP_NUM_THREADS=8\nCMD ["torchrun", "--nproc-per-node=gpu", "t.py"]\n',
            ),
            (
                "unfit-versions",
                f"{SLIM}RUN pip install --no-cache-dir torch==2.2.2 'numpy>=1.26'\n",
                f"{SLIM}RUN pip install --no-cache-dir torch==2.2.2 'numpy>=1.26,<2'\n",
            ),
        )
    ]
)
