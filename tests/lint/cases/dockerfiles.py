"""For each rule of Dockerfiles a text in which it finds something, and one that is near and in which it does not."""

from __future__ import annotations

TORCH = "FROM pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime\n"
CUDA = "FROM nvidia/cuda:12.4.1-cudnn-runtime-ubuntu22.04\n"
SLIM = "FROM python:3.11-slim\n"
PIP_CACHE = "RUN --mount=type=cache,target=/root/.cache/pip "
FETCH = "RUN huggingface-cli download org/model --revision 0e9e39f\n"

CASES: dict[str, tuple[str, str]] = {
    "source-before-install": (
        f"{TORCH}COPY . /app\nRUN pip install -r requirements.txt\n",
        f"{TORCH}COPY requirements.txt .\nRUN pip install -r requirements.txt\nCOPY . /app\n",
    ),
    "volatile-above-install": (
        f"{TORCH}ARG GIT_SHA\n{PIP_CACHE}pip install einops==0.8.0\n",
        f"{TORCH}ARG EINOPS=0.8.0\n{PIP_CACHE}pip install einops==$EINOPS\nARG GIT_SHA\n",
    ),
    "large-files-in-image": (f"{TORCH}COPY . /app\n", f"{TORCH}COPY --from=b /a/ /app\n"),
    "defeated-cache-mount": (
        f"FROM a:1\n{PIP_CACHE}pip install --no-cache-dir torch\n",
        f"FROM a:1\n{PIP_CACHE}pip install torch\n",
    ),
    "layer-copied-again": (
        f"{TORCH}COPY weights/ /opt/weights/\nRUN chown -R 1000 /opt/weights\n",
        f"{TORCH}COPY --chown=1000 weights/ /opt/weights/\nRUN chown 1000 /opt/weights\n",
    ),
    "copy-without-source": (f"{TORCH}COPY ../common /common\n", f"{TORCH}COPY common /common\n"),
    "undefined-variable": (
        f"ARG TAG=1\n{TORCH}COPY model-$TAG /model\n",
        f"ARG TAG=1\n{TORCH}ARG TAG\nCOPY model-$TAG /model\n",
    ),
    "unknown-name": (
        f"{TORCH[:-1]} AS builder\n{TORCH}COPY --from=build /a /a\n",
        f"{TORCH[:-1]} AS build\nRUN mkdir /a\n{TORCH}COPY --from=build /a /a\n",
    ),
    "shell-as-first-process": (f"{TORCH}CMD python train.py\n", f"{TORCH}CMD exec python train.py\n"),
    "failing-step": (
        f"{CUDA}RUN apt-get update && apt-get install git\n",
        f"{CUDA}RUN apt-get update && apt-get install -y git\n",
    ),
    "lost-shell-state": (f"{TORCH}RUN cd /opt/ops\n", f"{TORCH}RUN cd /opt/ops && make\n"),
    "bashism-in-sh": (
        f"{TORCH}RUN source env.sh && make\n",
        f'{TORCH}SHELL ["/bin/bash", "-c"]\nRUN source env.sh && make\n',
    ),
    "missing-at-start": (
        f"{TORCH}{FETCH}ENV HF_HOME=/opt/hf\n",
        f"{TORCH}ENV HF_HOME=/opt/hf\n{FETCH}",
    ),
    "broken-command": (
        f'{TORCH}CMD ["python", "train.py", "--out", "$OUT"]\n',
        f'{TORCH}CMD ["sh", "-c", "exec python train.py --out $OUT"]\n',
    ),
    "secret-in-image": (f"{TORCH}ENV HF_TOKEN=hf_abc\n", f"{TORCH}ENV PAD_TOKEN=0 HF_TOKEN_FILE=/run/secrets/hf\n"),
    "moving-version": (
        f"{TORCH}RUN pip install git+https://example.org/a.git@main\n",
        f"{TORCH}RUN pip install git+https://example.org/a.git@0e9e39f249a1\n",
    ),
    "costly-image-setting": (f"{TORCH}ENV CUDA_LAUNCH_BLOCKING=1\n", f"{TORCH}ENV CUDA_LAUNCH_BLOCKING=0\n"),
    "unfit-versions": (
        f"{CUDA}RUN pip install torch==2.5.1 torchvision==0.19.0\n",
        f"{CUDA}RUN pip install torch==2.5.1 torchvision==0.20.1\n",
    ),
    "torch-twice": (
        f"{TORCH}RUN pip install torch==2.3.0\n",
        f"{TORCH}RUN pip install torch==2.5.1 torchmetrics==1.0\n",
    ),
}

APT = "apt-get update && apt-get install -y"
CLEAN = "&& rm -rf /var/lib/apt/lists/*"
FAULTS: tuple[tuple[str, str, str], ...] = (
    ("source-before-install", "low", f"{TORCH}COPY telemetry.py .\nRUN pip install --no-cache-dir einops==0.8.0\n"),
    ("source-before-install", "high", f"{SLIM}COPY . .\nRUN pip install --no-cache-dir torch==2.5.1\n"),
    ("layer-copied-again", "low", f"{SLIM}COPY ops/ /opt/ops/\nRUN chown -R 1000 /opt/ops\n"),
    ("layer-copied-again", "medium", f"{TORCH}COPY ops/ /opt/ops/\nRUN chown -R 1000 /opt/conda /opt/ops\n"),
    (
        "layer-copied-again",
        "low",
        "FROM a:1\nRUN wget https://e.org/a/archive/v1.tar.gz\nRUN tar xf v1.tar.gz && rm v1.tar.gz\n",
    ),
    ("undefined-variable", "low", f"ARG NEWEST\n{TORCH}RUN pip install --upgrade certifi$NEWEST\n"),
    ("undefined-variable", "medium", f"ARG TAG=1\n{TORCH}ENV NAME=$TAG\n"),
    ("undefined-variable", "high", f"ARG TAG=1\n{TORCH}RUN pip install einops==$TAG\n"),
    ("shell-as-first-process", "low", f"{TORCH}CMD gunicorn app:app\n"),
    ("shell-as-first-process", "medium", f"{TORCH}CMD python train.py | tee log\n"),
    ("lost-shell-state", "low", f"{TORCH}RUN cd /opt/ops\nRUN pip install --no-cache-dir einops==0.8.0\n"),
    ("lost-shell-state", "high", f"{TORCH}RUN cd /opt/ops\nRUN pip install --no-cache-dir .\n"),
    ("lost-shell-state", "low", f"{TORCH}RUN export LD_PRELOAD=/usr/lib/libtcmalloc.so\nRUN make -C /a\n"),
    ("lost-shell-state", "high", f"{TORCH}RUN export JOBS=8\nRUN make -j $JOBS -C /a\n"),
    ("bashism-in-sh", "low", f"{TORCH}RUN true && rm -rf /var/lib/{{apt,dpkg}}/\n"),
    ("bashism-in-sh", "high", f"{TORCH}RUN mkdir -p /srv/{{a,b}}\n"),
    ("shell-as-first-process", "low", f"{TORCH}CMD python engine_server.py\n"),
    ("moving-version", "low", "FROM gcr.io/distroless/static-debian12\n"),
    ("moving-version", "low", "FROM alpine/git AS a\nRUN git --version\n"),
    ("moving-version", "medium", "FROM pytorch/pytorch\n"),
    (
        "torch-twice",
        "medium",
        "FROM nvcr.io/nvidia/pytorch:25.02-py3\nRUN pip uninstall -y torch\nRUN pip install torch==2.8.0\n",
    ),
    ("failing-step", "high", "FROM ubuntu:24.04\nRUN apt-get update && apt-get install -y python3.11\n"),
    ("source-before-install", "high", f"{TORCH}WORKDIR /app\nCOPY train.py .\n{FETCH}"),
    ("source-before-install", "high", f"{SLIM}COPY src/ src/\nCOPY pyproject.toml uv.lock ./\nRUN uv sync --frozen\n"),
    ("source-before-install", "low", f"{SLIM}COPY . .\nRUN {APT} ffmpeg {CLEAN}\n"),
    ("source-before-install", "medium", f"{SLIM}ONBUILD COPY . .\nONBUILD RUN pip install -r requirements.txt\n"),
    ("source-before-install", "medium", f"{SLIM}COPY . .\nRUN pip install -e .\n"),
    (
        "source-before-install",
        "medium",
        f"{SLIM}RUN --mount=type=bind,source=.,target=/src pip install -r /src/requirements.txt\n",
    ),
    ("source-before-install", "high", f"{SLIM}COPY app.py .\nRUN <<EOF\nset -e\npip install torch==2.5.1\nEOF\n"),
    ("volatile-above-install", "high", f"{SLIM}ARG BUILD_DATE\nENV BUILD_DATE=$BUILD_DATE\nRUN pip install einops\n"),
    (
        "volatile-above-install",
        "medium",
        f"{SLIM}LABEL org.opencontainers.image.revision=abc\nRUN pip install einops\n",
    ),
    ("large-files-in-image", "medium", f"{SLIM}COPY src/ src/\nCOPY weights/ weights/\n"),
    ("defeated-cache-mount", "medium", f"{SLIM}RUN --mount=type=cache,target=/cache/pip pip install -r a.txt\n"),
    ("defeated-cache-mount", "medium", f"{SLIM}RUN useradd -m app\nUSER app\n{PIP_CACHE}pip install -r a.txt\n"),
    ("defeated-cache-mount", "medium", f"{SLIM}ENV PIP_NO_CACHE_DIR=1\n{PIP_CACHE}pip install -r a.txt\n"),
    (
        "defeated-cache-mount",
        "medium",
        f"{SLIM}ENV UV_NO_CACHE=1\nRUN --mount=type=cache,target=/root/.cache/uv uv sync\n",
    ),
    ("defeated-cache-mount", "medium", f"{SLIM}RUN --mount=type=cache,target=/root/.cache/pip uv pip install torch\n"),
    (
        "layer-copied-again",
        "medium",
        f"{SLIM}RUN python -m venv /opt/venv && /opt/venv/bin/pip install torch==2.5.1\nRUN chmod -R 777 /opt/venv\n",
    ),
    (
        "layer-copied-again",
        "medium",
        f"{SLIM}COPY data.tar.gz /tmp/\nRUN tar xf /tmp/data.tar.gz && rm /tmp/data.tar.gz\n",
    ),
    ("layer-copied-again", "medium", f"{TORCH}RUN wget https://e.org/m.zip\nRUN unzip m.zip\nRUN rm m.zip\n"),
    ("costly-image-setting", "medium", f"{TORCH}RUN conda install -y faiss\nRUN conda clean -afy\n"),
    ("costly-image-setting", "medium", f"{SLIM}RUN pip install torch==2.5.1\n"),
    ("copy-without-source", "high", f"{TORCH}COPY a.py b.py /app\n"),
    ("undefined-variable", "medium", f"{TORCH}ENV APP=/app PATH=$APP/bin:$PATH\n"),
    ("undefined-variable", "high", f"{TORCH}ARG CONFIG=a.yaml\nCMD python train.py --config $CONFIG\n"),
    ("undefined-variable", "high", f"{TORCH[:-1]} AS a\nARG V=1\n{TORCH}RUN pip install einops==$V\n"),
    ("undefined-variable", "high", f"{TORCH}WORKDIR $HOME_DIR\nENV HOME_DIR=/srv\n"),
    ("unknown-name", "high", f"{TORCH[:-1]} AS b\nWORKDIR /build\nRUN make\n{TORCH}COPY --from=b /wheels /wheels\n"),
    ("unknown-name", "high", f'{SLIM}USER app\nCMD ["python", "a.py"]\n'),
    ("shell-as-first-process", "medium", f'{TORCH}CMD ["bash", "-c", "cd /app && torchrun train.py"]\n'),
    ("shell-as-first-process", "medium", f"{TORCH}ENTRYPOINT python train.py\n"),
    ("broken-command", "high", f'{TORCH}ENTRYPOINT python train.py\nCMD ["--epochs", "3"]\n'),
    ("broken-command", "high", f'{TORCH}ENTRYPOINT ["python", "train.py"]\nCMD --epochs 3\n'),
    ("broken-command", "high", f"{TORCH}CMD ['python', 'train.py']\n"),
    ("broken-command", "high", f'{TORCH}CMD ["python train.py"]\n'),
    ("broken-command", "high", f'{TORCH}CMD ["cd", "/app", "&&", "python", "train.py"]\n'),
    ("broken-command", "medium", f'{TORCH}CMD ["python", "a.py"]\nCMD ["python", "b.py"]\n'),
    ("broken-command", "high", f"{TORCH}STOPSIGNAL SIGKILL\n"),
    (
        "broken-command",
        "high",
        f'{TORCH}CMD ["torchrun", "--nnodes=2", "--node_rank=0", "--nproc-per-node=8", "t.py"]\n',
    ),
    ("broken-command", "high", f'{TORCH}CMD ["torchrun", "--standalone", "--nnodes=4", "t.py"]\n'),
    ("failing-step", "high", "FROM ubuntu:24.04\n" + f"RUN {APT} python3-pip {CLEAN}\nRUN pip install einops==0.8.0\n"),
    ("failing-step", "high", f"{TORCH}RUN pip install flash-attn==2.7.0\n"),
    ("failing-step", "high", f"{TORCH}RUN nvidia-smi\n"),
    ("failing-step", "high", f"{SLIM}RUN git clone -b v1.0 https://e.org/a.git\n"),
    ("failing-step", "high", f"{SLIM}RUN pip install git+https://e.org/a.git@0e9e39f\n"),
    ("failing-step", "high", f"{CUDA}RUN pip install torch==2.5.1\n"),
    ("failing-step", "high", f'{CUDA}RUN {APT} python3 {CLEAN}\nCMD ["python", "a.py"]\n'),
    ("failing-step", "high", f"{TORCH}RUN useradd -m app\nUSER app\nRUN {APT} git\n"),
    ("failing-step", "medium", f"{CUDA}RUN apt-get update\nRUN apt-get install -y git\n"),
    ("failing-step", "high", f"{CUDA}RUN apt-get install -y git\n"),
    ("failing-step", "medium", f"{CUDA}RUN {APT} tzdata\n"),
    ("failing-step", "high", "FROM nvidia/cuda:latest\n"),
    ("failing-step", "high", "FROM nvidia/cuda:12.4-runtime-ubuntu22.04\n"),
    ("failing-step", "high", "FROM continuumio/miniconda3:24.1.2-0\nRUN conda activate env && pip install einops\n"),
    ("failing-step", "high", f"{SLIM}COPY pyproject.toml ./\nRUN uv sync --frozen --no-install-project\n"),
    ("failing-step", "high", f"{SLIM}COPY pyproject.toml ./\nRUN pip install .\nCOPY src/ ./src/\n"),
    ("broken-command", "high", f'{TORCH}ENTRYPOINT ["python", "t.py"]\nCMD ["python", "t.py"]\n'),
    ("broken-command", "high", f'{TORCH}ENV CUDA_VISIBLE_DEVICES=0\nCMD ["torchrun", "--nproc-per-node=8", "t.py"]\n'),
    ("missing-at-start", "high", f'{TORCH}USER 1000\nRUN pip install -r r.txt\nCMD ["torchrun", "t.py"]\n'),
    ("costly-image-setting", "medium", "FROM nvidia/cuda:12.4.1-devel-ubuntu22.04\nRUN apt-get update\n"),
    ("costly-image-setting", "low", f"{TORCH}RUN wget -q https://e.org/d.tar.gz && tar xf d.tar.gz\n"),
    (
        "torch-twice",
        "medium",
        "FROM condaforge/miniforge3:24.9\nRUN conda install -y pytorch\nRUN pip install torch==2.5.1\n",
    ),
    ("lost-shell-state", "low", f"{TORCH}RUN export TORCH_CUDA_ARCH_LIST=8.0\n"),
    ("lost-shell-state", "high", f"{TORCH}RUN export TORCH_CUDA_ARCH_LIST=8.0\nRUN python setup.py install\n"),
    ("lost-shell-state", "high", f"{TORCH}RUN . /opt/venv/bin/activate\nRUN pip install einops==0.8.0\n"),
    ("lost-shell-state", "medium", f"{TORCH}RUN pip install einops==0.8.0; echo done\n"),
    ("lost-shell-state", "medium", f"{TORCH}RUN pip install -r r.txt || true\n"),
    ("lost-shell-state", "medium", f"{TORCH}RUN pip install -r r.txt | tee log\n"),
    ("lost-shell-state", "medium", f"{TORCH}RUN <<EOF\npip install -r r.txt\npip install -r s.txt\nEOF\n"),
    ("bashism-in-sh", "high", f"{TORCH}RUN set -eo pipefail && make | tee log\n"),
    ("bashism-in-sh", "high", f"{TORCH}RUN mkdir -p /data/{{train,val}}\n"),
    (
        "missing-at-start",
        "high",
        f"{TORCH}RUN --mount=type=cache,target=/root/.cache/huggingface hf download org/model\n",
    ),
    ("missing-at-start", "high", f"{TORCH}{FETCH}RUN useradd -m app\nUSER app\n"),
    ("missing-at-start", "high", f"{TORCH}ENV HF_HUB_OFFLINE=1\n{FETCH}"),
    ("missing-at-start", "low", f"{TORCH}RUN useradd app\nUSER app\n"),
    ("missing-at-start", "medium", f"{TORCH}RUN pip install vllm==0.6.4\nRUN useradd app\nUSER app\n"),
    ("missing-at-start", "high", f"{SLIM}{PIP_CACHE}pip install opencv-python==4.10.0.84\n"),
    ("missing-at-start", "high", f"{SLIM}RUN pip install lightgbm==4.5.0\n"),
    (
        "missing-at-start",
        "high",
        f"{SLIM[:-1]} AS b\nRUN python -m venv /opt/venv && /opt/venv/bin/pip install ultralytics==8.3\n"
        f"{SLIM}COPY --from=b /opt/venv /opt/venv\n",
    ),
    ("failing-step", "high", f"{SLIM}RUN pip install psycopg2==2.9.9\n"),
    ("costly-image-setting", "medium", f"{SLIM}# embeds on CPU nodes\n{PIP_CACHE}pip install torch==2.6.0\n"),
    ("costly-image-setting", "medium", f'{TORCH}CMD ["gunicorn", "-w", "4", "app:app"]\n'),
    ("costly-image-setting", "medium", f"{TORCH}ENV WEB_CONCURRENCY=4\n"),
    ("costly-image-setting", "low", "FROM condaforge/miniforge3:24.11.3-0\nRUN conda install -y -c conda-forge a=1\n"),
    ("shell-as-first-process", "low", f"{TORCH}CMD uvicorn a:app 2>&1 | tee /log\n"),
    ("shell-as-first-process", "medium", f"{TORCH}CMD exec python train.py | tee /log\n"),
    ("unfit-versions", "high", f"{CUDA}RUN pip install jax==0.4.35\n"),
    (
        "unfit-versions",
        "high",
        "# on GPUs\nFROM condaforge/miniforge3:24.11.3-0\nRUN conda install -y -c conda-forge pytorch=2.5 numpy\n",
    ),
    (
        "unfit-versions",
        "high",
        f"FROM python:3.12-slim AS b\nRUN pip install --prefix=/inst a==1\n{SLIM}COPY --from=b /inst /usr/local\n",
    ),
    (
        "unfit-versions",
        "high",
        f"{SLIM[:-1]} AS b\nRUN python -m venv /v && /v/bin/pip install a==1\n{CUDA}COPY --from=b /v /v\n",
    ),
    (
        "unfit-versions",
        "high",
        "FROM ghcr.io/astral-sh/uv:python3.12-bookworm-slim AS b\nWORKDIR /app\nCOPY pyproject.toml uv.lock ./\n"
        f"RUN uv sync --frozen\n{SLIM}COPY --from=b /app /app\n",
    ),
    (
        "missing-at-start",
        "high",
        "FROM continuumio/miniconda3:24.1.2-0\nCOPY environment.yml .\n"
        'RUN conda env create -f environment.yml\nCMD ["python", "train.py"]\n',
    ),
    (
        "missing-at-start",
        "high",
        f"{SLIM[:-1]} AS b\nRUN python -m venv /opt/venv\n{SLIM}"
        'COPY --from=b /opt/venv /opt/venv\nCMD ["python", "train.py"]\n',
    ),
    ("secret-in-image", "high", f"{TORCH}ARG WANDB_API_KEY\nRUN wandb login $WANDB_API_KEY\n"),
    ("secret-in-image", "high", f"{TORCH}COPY .env /app/.env\n"),
    ("secret-in-image", "high", f"{TORCH}COPY id_rsa /root/.ssh/id_rsa\nRUN rm /root/.ssh/id_rsa\n"),
    ("secret-in-image", "high", f"{TORCH}RUN pip install --index-url https://ci:pa55word@pypi.e.org/simple a==1\n"),
    ("secret-in-image", "high", f"{TORCH}ARG T\nRUN git clone https://oauth2:${{GITLAB_TOKEN}}@e.org/a.git\n"),
    ("secret-in-image", "high", f'{TORCH}RUN echo "machine e.org password x" > ~/.netrc\n'),
    ("moving-version", "medium", "FROM pytorch/pytorch\n"),
    ("moving-version", "medium", "FROM pytorch/pytorch:latest\n"),
    ("moving-version", "medium", f"{TORCH}RUN git clone https://e.org/a.git && pip install ./a\n"),
    ("moving-version", "medium", f"{CUDA}RUN pip install torch\n"),
    ("moving-version", "low", f"{TORCH}ADD https://e.org/w.tar.gz /w/\n"),
    ("costly-image-setting", "high", f"{TORCH}ENV NCCL_P2P_DISABLE=1\n"),
    ("costly-image-setting", "high", f"{TORCH}ENV NVIDIA_DRIVER_CAPABILITIES=video\n"),
    ("costly-image-setting", "low", f"{TORCH}ENV OMP_NUM_THREADS=1\n"),
    ("costly-image-setting", "low", f"{TORCH}ENV LD_LIBRARY_PATH=/opt/lib\n"),
    ("costly-image-setting", "high", f"{TORCH}ENV PATH=/opt/venv/bin\n"),
    ("costly-image-setting", "medium", f"{TORCH}HEALTHCHECK --interval=10s CMD python -c 'import torch'\n"),
    ("costly-image-setting", "low", f"{TORCH}VOLUME /checkpoints\n"),
    ("costly-image-setting", "medium", f'{TORCH}CMD ["sh", "-c", "pip install -r r.txt && exec python train.py"]\n'),
    (
        "unfit-versions",
        "high",
        f"{CUDA}RUN pip install torch==2.5.1 --index-url https://download.pytorch.org/whl/cu117\n",
    ),
    ("unfit-versions", "high", "FROM python:3.13-slim\nRUN pip install torch==2.3.1\n"),
    (
        "unfit-versions",
        "high",
        f"{CUDA}RUN pip install torch==2.5.1 transformers==4.47.1 --index-url https://download.pytorch.org/whl/cu124\n",
    ),
    (
        "unfit-versions",
        "high",
        f"{SLIM[:-1]} AS b\nRUN pip install a==1\nFROM python:3.12-slim\n"
        "COPY --from=b /usr/local/lib/python3.11/site-packages "
        "/usr/local/lib/python3.11/site-packages\n",
    ),
    (
        "unfit-versions",
        "high",
        f"{SLIM[:-1]} AS b\nRUN python -m venv /build/venv\n{SLIM}COPY --from=b /build/venv /opt/venv\n",
    ),
    ("torch-twice", "high", "FROM nvcr.io/nvidia/pytorch:24.10-py3\nRUN pip install torch==2.5.1\n"),
    ("torch-twice", "high", f"{TORCH}RUN pip install torch==2.5.1 --index-url https://download.pytorch.org/whl/cpu\n"),
    ("torch-twice", "medium", f"{TORCH}RUN pip install vllm\n"),
    ("torch-twice", "medium", f"{CUDA}RUN pip install torch==2.5.1\nRUN pip install torch==2.4.0 a==1\n"),
)
"""(rule, severity, text)"""

SOUND = (
    f"{CUDA}WORKDIR /opt/ops\nRUN cd /opt/ops/\nRUN make\n",
    f"FROM ubuntu:24.04\nRUN {APT} python3 python3.12 {CLEAN}\n",
    "FROM a:1\nWORKDIR /a\nRUN git clone https://e.org/ops.git\nRUN cd ops && git checkout $REVISION && make\n",
    "FROM rocm/dev-ubuntu-22.04:6.3\nCOPY setup.py .\nRUN python3 setup.py bdist_wheel\n",
    f"{TORCH}COPY server/ server/\nWORKDIR /workspace\nRUN cd server && uv sync --frozen --no-dev\n".replace(
        "COPY server/ server/\n", ""
    ),
    f"# syntax=docker/dockerfile:1\n{CUDA}RUN {APT} --no-install-recommends python3 "
    f"python3-pip git {CLEAN}\n"
    "WORKDIR /srv/app\nCOPY requirements.txt ./\n"
    f"{PIP_CACHE}pip3 install -r requirements.txt\nCOPY src/ src/\nARG GIT_SHA\nENV "
    f"GIT_SHA=$GIT_SHA\n"
    'CMD ["python3", "-m", "src.train"]\n',
    f"{TORCH[:-1]} AS build\nENV TORCH_CUDA_ARCH_LIST=8.0 MAX_JOBS=4\nRUN {APT} git "
    f"{CLEAN} \\\n"
    " && git clone https://e.org/ops.git /ops \\\n && cd /ops && git checkout "
    "0e9e39f249a16976918f6564b8830bc894c89659\n"
    f"{TORCH}ENV PYTHONUNBUFFERED=1 HF_HOME=/opt/hf\nRUN "
    f"--mount=type=secret,id=hf,env=HF_TOKEN \\\n"
    "    hf download org/model --revision 0e9e39f\nRUN useradd --create-home --uid "
    "1001 trainer\n"
    "COPY --from=build /ops /ops\nCOPY --chown=trainer train.py /srv/\nUSER trainer\n"
    'ENTRYPOINT ["python", "/srv/train.py"]\nCMD ["--epochs", "2"]\n',
    "ARG PY=3.11\nFROM python:${PY}-slim AS build\n"
    f"RUN {APT} --no-install-recommends git build-essential {CLEAN}\nRUN python -m "
    f"venv /opt/venv\n"
    "ENV PATH=/opt/venv/bin:$PATH\nCOPY requirements.txt .\nRUN pip install "
    "--no-cache-dir -r requirements.txt\n"
    "FROM python:${PY}-slim\nCOPY --from=build /opt/venv /opt/venv\nENV "
    "PATH=/opt/venv/bin:$PATH\nCOPY app/ /srv/app/\n"
    'WORKDIR /srv\nCMD ["python", "-m", "app.train"]\n',
    f'{TORCH}SHELL ["/bin/bash", "-eo", "pipefail", "-c"]\nRUN make | tee log\n'
    'RUN <<EOF\nset -e\nmkdir -p /data\necho a > /data/b\nEOF\nENTRYPOINT ["tini", '
    '"--", "python", "train.py"]\n',
    "FROM mambaorg/micromamba:1.5.8\nCOPY --chown=$MAMBA_USER:$MAMBA_USER "
    "environment.yml /tmp/environment.yml\n"
    "RUN micromamba install -y -n base -f /tmp/environment.yml && micromamba clean "
    "--all --yes\nCOPY train.py .\n"
    'CMD ["python", "train.py"]\n',
    f"{SLIM[:-1]} AS b\nRUN python -m venv /opt/venv && /opt/venv/bin/pip install --no-cache-dir opencv-python==4.10\n"
    f"{SLIM}COPY --from=b /opt/venv /opt/venv\nENV PATH=/opt/venv/bin:$PATH\nRUN {APT} libgl1 libglib2.0-0 {CLEAN}\n",
    f"{SLIM}RUN pip install --no-cache-dir opencv-python-headless==4.10 soundfile==0.12.1 psycopg2-binary==2.9.9\n",
    f"# runs on the CPU\n{SLIM}{PIP_CACHE}torch==2.6.0+cpu --extra-index-url https://download.pytorch.org/whl/cpu\n",
    "FROM python:3.12-slim AS b\nRUN pip install --no-cache-dir a==1 && python -m a /out/data\n"
    f"{SLIM}COPY --from=b /out/data /data\n",
    "FROM python:3.12-slim AS b\nRUN pip install --no-cache-dir a==1\nFROM debian:bookworm-slim\n"
    "COPY --from=b /usr/local /usr/local\n",
    f"{TORCH}RUN {APT} git {CLEAN} && pip install --no-cache-dir "
    "'a @ git+ssh://git@e.org/o/a.git@0123456789abcdef0123456789abcdef01234567' 'b @ git+https://e.org/b@rel-1.2'\n",
    f"{SLIM}ENV HF_HUB_OFFLINE=1\nRUN useradd -M app && pip install --no-cache-dir wandb==0.19\nUSER app\n",
    f'{SLIM}CMD ["gunicorn", "-b", ":80", "-w", "4", "app:app"]\n',
    "# on GPUs\nFROM condaforge/miniforge3:24.11.3-0\nENV CONDA_OVERRIDE_CUDA=12.6\n"
    "RUN conda install -y -c conda-forge pytorch-gpu=2.5 && conda clean -afy\n",
    f'{TORCH}ENTRYPOINT ["tini", "-g", "--"]\nCMD python train.py | tee log\n',
)
