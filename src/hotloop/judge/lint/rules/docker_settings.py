"""Checks of Dockerfiles: secrets, versions that move, and settings that slow down every run of the image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hotloop.core.findings import Severity
from hotloop.core.lint import Confidence, LintFinding, lint_rule
from hotloop.judge.lint.formats.builds import DockerBuild, Fault, Layer, find_faults

HIGH, MEDIUM, LOW, LIKELY = Severity.HIGH, Severity.MEDIUM, Severity.LOW, Confidence.LIKELY
NAMES = (
    r"(?i:(\w*_)?(token|passwd|password|secret|secret_?key|api_?key|access_?key(_?id)?"
    r"|private_?key|credentials?|auth_?key|deploy_?key|ssh_?key|pat))"
)
HIDE = "use RUN --mount=type=secret, or pass it to the container when it starts"
READ = ": anyone who pulls the image can read the secret, even if a later layer removes it"
SECRETS = (
    Fault(
        "ARG",
        rf"^(?!(?i:.*(pad|max|eos|bos|num|mask)_token)){NAMES}=",
        HIGH,
        "ARG {0} keeps the token or password in the history of the image" + READ,
        HIDE,
    ),
    Fault(
        "ENV",
        rf"^(?!(?i:.*(pad|max|eos|bos|num|mask)_token)){NAMES}=(?!/|(?i:true|false|none" rf"|null|\d?)$)",
        HIGH,
        "ENV {0} keeps the token or password in the configuration of the image" + READ,
        HIDE,
    ),
    Fault(
        "RUN-TEXT ENV ARG ADD",
        r"(?<![\w-])(hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
        r"|AKIA[0-9A-Z]{16}|glpat-[\w-]{16,}|sk-[A-Za-z0-9]{20,})",
        HIGH,
        "a token is written here" + READ,
        HIDE,
    ),
    Fault(
        "RUN-TEXT ENV ARG ADD",
        r"://[^/\s:@$'\"]+:[^/\s@$'\"{]{3,}@",
        HIGH,
        "a URL with a password is written here" + READ,
        HIDE,
    ),
    Fault(
        "RUN-TEXT",
        r"://[^/\s@'\"]*\$\{?\w*(TOKEN|PAT|PASSW\w*|SECRET|KEY)\w*\}?[^/\s'\"]*@",
        HIGH,
        "the URL with the token stays in the layer and the history" + READ,
        HIDE,
        unless=r"type': 'secret|type=secret",
    ),
    Fault(
        "RUN",
        r"^((huggingface-cli|hf auth|hf) login|wandb login \S*[\w$].*|(docker|az|gh auth) "
        r"login .*(-p|-password|-with-token)|aws configure set \S*secret|git config "
        r".*(extraheader|insteadof)).*",
        HIGH,
        "{0} leaves the token in a file of this layer" + READ,
        HIDE,
        confidence=LIKELY,
    ),
    Fault(
        "RUN-TEXT",
        r"(?:echo|printf)[^;&|]*(TOKEN|PASSWORD|SECRET|API_KEY|machine|password)[^;&|]*>+ "
        r"*\S*(netrc|pypirc|kaggle|token|credentials|id_rsa|\.env|pip\.conf"
        r"|git-credentials)",
        HIGH,
        "{0} writes the secret to a file of this layer" + READ,
        HIDE,
        confidence=LIKELY,
    ),
    Fault(
        "COPY ADD",
        r"(^|[\s/\"])(\.env(\.(prod|production|local|secret))?|id_(rsa|ed25519|ecdsa|dsa)"
        r"|\.netrc|\.pypirc|kaggle\.json|\.git-credentials|\.aws|\.ssh"
        r"|[\w-]*(service[-_]?account|credentials?|secrets?)[\w-]*\.(json|ya?ml|txt|env)"
        r"|[\w.-]*(?<!ca)(?<!cert)(?<!chain)\.(pem|p12)|\.?hf_token"
        r"|token\.txt)/?(?=[\s\"])",
        HIGH,
        "{0} with its secret is copied into a layer" + READ,
        HIDE,
        confidence=LIKELY,
    ),
)


@lint_rule("secret-in-image", "a secret is kept in the image or its history", reads="dockerfile", is_proof=True)
def secret_in_image(build: DockerBuild) -> Iterator[LintFinding]:
    """## What it does
    Looks for tokens, passwords and keys in `ARG`, `ENV`, `COPY` and URLs, and for logins in a `RUN` that leave a token
    in a file.

    ## Why it costs
    Anyone who can pull the image can read the secret in its history or in a layer, even if a later step removes the
    file.

    ## How to recognize it
    The rule goes by variable names (`HF_TOKEN`), by the form of known tokens, and by file names such as `.env`,
    `id_rsa` and `.netrc`. It skips stages whose files are only copied into other stages.

    ## What to do
    Use `RUN --mount=type=secret,id=hf_token,env=HF_TOKEN ...`, and pass secrets to the container when it starts.
    Replace any published secret.

    ## When it is wrong
    Ignore the finding if the value is a placeholder that grants no access.
    """
    yield from find_faults(SECRETS, build.final)


COMMIT = r"(?!\S*@([0-9a-f]{7,40}\b|v?\d|[^\s@/]*\d[._-]\d|\S*\$|refs/tags|[^\s@]*/[0-9a-f]{40}\b))(?!\S*#\S*rev=)"
MOVES = (
    "names a branch, not a commit: the cached layer keeps its old code when the branch "
    "moves, and no two builds are the same"
)
MOVING = (
    Fault(
        "PACKAGE",
        rf"^([\w.\[\],-]+ *@ *)?{COMMIT}(git\+|git@)\S+",
        MEDIUM,
        "{0} " + MOVES,
        "pin a commit (git+https://...@<sha>)",
    ),
    Fault(
        "RUN",
        r"^git clone (?!.*(-b|--branch)[ =](\S*\d+[._]\d+"
        r"|\S*\$))(?!.*--revision)(?!.*remote\.origin\.fetch=\+?[0-9a-f]{7}).*",
        MEDIUM,
        "{0} " + MOVES,
        "git checkout <sha> in the same RUN, or clone a tag",
        unless=r"git clone[^\n]*(\n(?!(RUN|COPY|ADD|ENV|ARG|WORKDIR|FROM|CMD|USER|LABEL) "
        r")[^\n]*)*git (-C \S+ )?(checkout|reset|switch|fetch)(?! "
        r"(origin/)?(main|master|develop)\b)",
        never=r"\bgit (checkout|reset|switch)(?! (-\S+ )*(origin/)?(main|master|develop)\b)",
    ),
    Fault("ADD", r"^\S+\.git(#(?![0-9a-f]{7})\S*)?(?=\s)", MEDIUM, "{0} " + MOVES, "ADD https://...git#<sha>"),
    *(
        Fault(
            "FROM",
            rf"^({sign}(python|pytorch/|tensorflow/|vllm/|lmsysorg/|rocm/|huggingface/|nvcr\.io/)|(\S+/)?(ubuntu|debian))"
            r"(?=\S*/|ubuntu|debian|python|alpine|node|fedora|centos|tensorflow|golang"
            r"|busybox)[^\s$@:]+(:\d+/[^\s$@:]+)?(:latest)?(?=\s*\t| +(?i:as) )",
            severity,
            "{0} may be another image tomorrow (no version tag): " + effect,
            "pin a version tag or a digest",
        )
        for severity, sign, effect in (
            (MEDIUM, "?=", "Python, CUDA or torch change without notice, and no build can be repeated"),
            (LOW, "?!", "no build can be repeated"),
        )
    ),
    Fault(
        "PACKAGE",
        r"^(torch|(torchvision|torchaudio)(?!.*torch\S*==)|flash[-_]attn|vllm|xformers"
        r"|deepspeed)(\[.*\])?(?=\s*(>=?[^,]*)?\t)(?!.*(--index-url|-c |--constraint))",
        MEDIUM,
        "{0} is not pinned: each new layer gets another version, and what was compiled "
        "or tested with the old one breaks",
        "pin the version (==)",
        unless=r"uv\.lock|PIP_CONSTRAINT",
        base=r"^(?!.*(pytorch/|nvcr\.io))",
        confidence=LIKELY,
    ),
    Fault(
        "PACKAGE",
        r"^(?!(pip|setuptools|wheel|uv|poetry)\b)[A-Za-z][\w.-]*(\[.*\])?(?=\s*(>=?[^,]*)?"
        r"\t)(?!.*(-c |--constraint|--no-deps))",
        LOW,
        "{0} is not pinned: each new layer gets another version",
        "pin the version (==), or use a lock file",
        unless="PIP_CONSTRAINT",
        confidence=LIKELY,
    ),
    Fault(
        "RUN",
        r"^apt(-get)? .*\b(dist-)?upgrade\b.*|^(python[\d.]* -m )?pip[\d.]* install (-\S+ "
        r")*(-U|--upgrade) (-\S+ )*pip( setuptools)?( wheel)?$",
        LOW,
        "{0} changes what is installed with each new layer",
        "choose a newer base image, or pin the version",
    ),
    Fault(
        "RUN",
        r"^uv sync (?!.*--(frozen|locked)).*",
        LOW,
        "{0} without --frozen or --locked may change the lock file's versions",
        "uv sync --frozen",
        unless="UV_FROZEN|UV_LOCKED",
    ),
    Fault(
        "RUN",
        r"^curl(?=.*( -\w*[oO]\b| --output| --remote-name))(?!.*( -\w*f\w*\b| "
        r"--fail)).*\.(pt|pth|bin|safetensors|ckpt|onnx|npz|parquet|csv|json|h5|model)\b.*",
        MEDIUM,
        "{0}: curl without -f saves the server's error page as the file, and the build goes on",
        "curl -fsSL --retry 3, and sha256sum -c",
        unless="sha256sum|md5sum|--checksum",
    ),
    Fault(
        "RUN",
        r"^(curl (?=.*( -\w*[oO]\b| --output))|wget ).*(https?://\S+)",
        LOW,
        "{0} is not verified: the content of the URL can change without notice",
        "check it with sha256sum -c, or ADD --checksum",
        unless=r"sha\d+sum|md5sum|gpg|checksum",
    ),
    Fault(
        "ADD",
        r"^https?://(?!\S*/archive/)\S+\.(tar|tgz|tar\.\w+|zip|whl)(?=\s)",
        LOW,
        "ADD {0}: it is not unpacked or verified, and the archive stays in its layer even if removed later",
        "RUN curl -fsSL URL | tar -x, or ADD --checksum=sha256:... URL",
        unless=r"name='checksum'",
    ),
    Fault(
        "ADD",
        r"^https?://\S+",
        LOW,
        "ADD {0} is not verified: the content of the URL can change without notice",
        "ADD --checksum=sha256:...",
        unless=r"name='checksum'",
    ),
)


@lint_rule(
    "moving-version",
    "installed versions change although the file does not",
    reads="dockerfile",
    each="chains",
    is_proof=True,
)
def moving_version(build: DockerBuild, chain: Sequence[Layer]) -> Iterator[LintFinding]:
    """## What it does
    Looks for branches in `git clone` and `pip install git+https://...` (including requirements files), base images
    without a version (`latest`), packages without a version, and downloads that are not verified.

    ## Why it costs
    A cached layer silently keeps the code or version of the day when it was built, and another builder gets a different
    version: images from the same Dockerfile differ, and an old image cannot be rebuilt.

    ## How to recognize it
    No commit, version tag, digest or checksum is given, and no `git checkout` follows in the same `RUN`.

    ## What to do
    Name a commit, version or digest; install from a lock file.

    ## When it is wrong
    Ignore the finding if all builds run without a cache and you want the newest code.
    """
    yield from find_faults(MOVING, chain)


MOVE = "remove it from the image, and set it only for the run that needs it"
COSTLY = (
    Fault(
        "CPU-PACKAGES",
        r"(?m)^(torch(vision)?|sentence[-_]transformers|easyocr|openai-whisper|ultralytics)(?![\w-])(?!\S*\+cpu)[^\t\n]*"
        r"(?![\s\S]*(whl/cpu|\+cpu|torch-backend[= ]cpu|cpu/torch))",
        MEDIUM,
        "{0} from PyPI brings the CUDA libraries (nvidia-*), gigabytes that this CPU image never uses",
        "use the CPU wheels: --extra-index-url https://download.pytorch.org/whl/cpu, torch==X+cpu",
        unless=r"whl/cpu|\+cpu|TORCH_BACKEND=cpu|(linux/)?(arm64|aarch64)",
        confidence=LIKELY,
    ),
    Fault(
        "RUN",
        r"^(conda|mamba|micromamba) (env )?(-\S+ )*(install|create|update).*",
        LOW,
        "{0}: the package cache (pkgs) stays in this layer, as no conda clean follows",
        "conda clean -afy in this RUN, or a cache mount on the pkgs folder",
        unless=r"(conda|mamba) clean|rm -\w+ [^\n]*pkgs|type': 'cache|type=cache[^\n]*\n$",
    ),
    Fault(
        "START",
        r"^(gunicorn|uvicorn|hypercorn|granian|fastapi|python[\d.]* -m (uvicorn|gunicorn))\b(?!.*--preload).* "
        r"(--workers|-w|--processes)[ =]?([2-9]|\d\d)\b.*",
        MEDIUM,
        "{0}: each worker is a process that loads its own model: several copies in the memory of one GPU, and "
        "several CUDA contexts",
        "use one worker per GPU (--workers 1) with batching, and more replicas for more GPUs",
        base=r"cuda|pytorch/pytorch|nvcr\.io",
        confidence=LIKELY,
    ),
    Fault(
        "ENV",
        r"^WEB_CONCURRENCY=([2-9]|\d\d)\b",
        MEDIUM,
        "{0} starts several workers, and each loads its own model: several copies in the memory of one GPU",
        "use one worker per GPU (WEB_CONCURRENCY=1) with batching",
        base=r"cuda|pytorch/pytorch|nvcr\.io",
        confidence=LIKELY,
    ),
    Fault(
        "ENV",
        r"^CUDA_LAUNCH_BLOCKING=[^0$].*",
        HIGH,
        "{0} in the image makes each kernel wait for the one before: CPU and GPU no longer overlap",
        MOVE,
    ),
    Fault(
        "ENV",
        r"^CUDA_VISIBLE_DEVICES=(-1|none|)$|^NVIDIA_VISIBLE_DEVICES=(none|void|)$",
        HIGH,
        "{0} in the image hides all GPUs",
        MOVE,
    ),
    Fault(
        "ENV",
        r"^(CUDA|NVIDIA)_VISIBLE_DEVICES=\d+(,\d+)*$",
        MEDIUM,
        "{0} in the image leaves the other GPUs of each machine unused, however many processes are started",
        MOVE,
    ),
    Fault(
        "ENV",
        r"^NVIDIA_DRIVER_CAPABILITIES=(?!.*(compute|all|\$)).*",
        HIGH,
        "{0} omits compute: CUDA's driver is not mounted, and torch sees no GPU",
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ),
    Fault(
        "ENV",
        r"^NCCL_P2P_DISABLE=[^0$].*",
        HIGH,
        "{0} in the image makes GPUs exchange all data through the host's memory",
        MOVE,
    ),
    Fault(
        "ENV",
        r"^NCCL_(IB|SHM|NET_GDR)_DISABLE=[^0$].*",
        MEDIUM,
        "{0} in the image makes nodes or GPUs exchange data over a slower path",
        MOVE,
    ),
    Fault(
        "ENV",
        r"^(NCCL|GLOO)_SOCKET_IFNAME=lo$",
        HIGH,
        "{0} binds NCCL to the loopback interface: nodes never find each other",
        MOVE,
    ),
    Fault(
        "ENV",
        r"^(RANK|NODE_RANK|LOCAL_RANK)=\d+$",
        HIGH,
        "{0} in the image gives each process or node the same rank",
        MOVE,
    ),
    Fault(
        "ENV",
        r"^(WORLD_SIZE=\d+|MASTER_ADDR=(localhost|127\.\S*))$",
        MEDIUM,
        "{0} in the image fixes the number of processes, or makes each node its own master",
        MOVE,
    ),
    Fault(
        "ENV",
        r"^TORCH_DISTRIBUTED_DEBUG=(?i:detail)",
        MEDIUM,
        "{0} in the image checks each collective with another one, which costs tens of percent of each step",
        MOVE,
    ),
    Fault(
        "ENV", r"^(TORCHDYNAMO|TORCH_COMPILE)_DISABLE=[^0$]", MEDIUM, "{0} in the image turns torch.compile off", MOVE
    ),
    Fault(
        "ENV", r"^PYTORCH_NO_CUDA_MEMORY_CACHING=[^0$]", HIGH, "{0} in the image makes each tensor a cudaMalloc", MOVE
    ),
    Fault(
        "ENV",
        r"^(NVIDIA_TF32_OVERRIDE=0|CUDA_CACHE_DISABLE=1|PYTHONDEVMODE=1|PYTHONMALLOC=debug"
        r"|CUDA_MODULE_LOADING=EAGER)",
        MEDIUM,
        "{0} in the image slows down each start or each step (TF32 off, kernels compiled again, debug mode)",
        MOVE,
    ),
    Fault(
        "ENV",
        r"^(OMP|MKL|OPENBLAS)_NUM_THREADS=1$",
        LOW,
        "{0} in the image gives each process one thread for all its work on the CPU: "
        "loading and preprocessing are slower",
        MOVE,
    ),
    Fault("ENV", r"^NCCL_DEBUG=(?i:info|trace)", LOW, "{0} in the image makes every rank write logs", MOVE),
    Fault(
        "ENV",
        r"^PATH=(?!.*\$\{?PATH)(?!.*/usr/bin).*",
        HIGH,
        "{0}: PATH is overwritten without $PATH: Python and the base's programs are not found",
        "ENV PATH=...:$PATH",
    ),
    Fault(
        "ENV",
        r"^LD_LIBRARY_PATH=(?!.*\$\{?LD_LIBRARY_PATH)(?!.*/usr/local/(nvidia|cuda)).*",
        LOW,  # ldconfig knows most of these folders, too
        "{0}: LD_LIBRARY_PATH is overwritten, and {base}'s folders of CUDA and the driver are lost",
        "ENV LD_LIBRARY_PATH=...:$LD_LIBRARY_PATH",
        base=r"^(?!.*rocm).*(cuda|pytorch|nvcr)",
    ),
    Fault(
        "ENV",
        r"^PYTHONPATH=(?!.*\$\{?PYTHONPATH).*",
        MEDIUM,
        "{0}: PYTHONPATH is overwritten, and modules of the earlier path are not found",
        "ENV PYTHONPATH=...:$PYTHONPATH",
        needs=r"ENV [^\n]*PYTHONPATH[= ][\s\S]*ENV [^\n]*PYTHONPATH",
    ),
    Fault(
        "RUN-TEXT",
        r"^(?![\s\S]*(conda|mamba) (install|create|env|update))[\s\S]*(conda|mamba) clean",
        MEDIUM,
        "conda clean only hides package archives that an earlier layer contains: they stay in the image",
        "run it in the RUN that installs",
        needs=r"(conda|mamba) (install|create|env|update)",
    ),
    Fault(
        "RUN-TEXT",
        r"^(?![\s\S]*(pip[\d.]*|\$\{?PIP\w*\}?) (\S+ )*?install)[\s\S]*(pip[\d.]* cache purge|rm -\w+ "
        r"[^\n&;]*\.cache(/pip|/\*)?/?(\s|$))",
        MEDIUM,
        "pip's cache is removed in a later layer: it stays in the image, hidden",
        "use a cache mount, or --no-cache-dir",
        needs=r"pip[\d.]* install (?![^\n]*--no-cache-dir)[^\n]*(torch|-r )",
        unless="NO_CACHE",
    ),
    Fault(
        "RUN-TEXT",
        r"^(?![\s\S]*apt(-get)? (-\S+ )*install)[\s\S]*(rm -\w+ "
        r"[^\n&;]*/var/(lib/apt|cache/apt)|apt(-get)? (clean|autoremove|purge|remove))",
        LOW,
        "files that apt-get installed or fetched are removed in a later layer: they stay in the image, hidden",
        "clean in the RUN that installs",
        needs=r"apt(-get)? (-\S+ )*install",
    ),
    Fault(
        "PACKAGE",
        r"^torch(?![\w-])\S*(?!.*(--no-cache-dir|--no-cache\b|--target))",
        MEDIUM,
        "pip's cache with the wheels of {0} stays in this layer: gigabytes that are pulled and never used",
        "use a cache mount, or --no-cache-dir",
        unless=r"NO_CACHE|type=(cache|tmpfs)[^\n]*\n$|cache (purge|clean|prune)|rm -\w+ " r"[^\n]*(\.cache|/root/)",
        base=r"^(?!.*nvcr\.io)",
        confidence=LIKELY,
    ),
    Fault(
        "RUN",
        r"^(python[\d.]* -m )?pip[\d.]* (?!.*--no-cache-dir)install.*",
        LOW,
        "{0}: pip's cache stays in this layer",
        "use a cache mount, or --no-cache-dir",
        unless=r"NO_CACHE|type=(cache|tmpfs)|cache (purge|clean|prune)|rm -\w+ [^\n]*(\.cache|/root/)",
        confidence=LIKELY,
    ),
    Fault(
        "RUN",
        r"^apt(-get)? (-\S+ )*install.*",
        LOW,
        "{0}: the package lists stay in this layer",
        "rm -rf /var/lib/apt/lists/* in this RUN",
        unless=r"/var/lib/apt|apt(-get)? clean|type=cache[^\n]*\n$",
        confidence=LIKELY,
    ),
    Fault(
        "FROM",
        r"(?i)^\S*(cuda|pytorch)\S*-devel\S*(?=[^\t]*\t(?![\s\S]*(nvcc|setup\.py|deepspeed"
        r"|flash[-_]?(attn|infer)|apex|no-build-isolation|CUDA_HOME|ninja|make\b|cutlass|triton"
        r"|vllm|sglang|tensorrt|gcc|g\+\+|build-essential|xformers|CUDA_ARCH|cmake|bitsandbytes|mamba[-_]ssm"
        r"|causal|pytorch3d|detectron2|mmcv|cupy|numba|UNREAD|sleep inf|COMPILES"
        r"|uv sync|poetry|-e \.|install \.|git\+|\.sh\b)))",
        MEDIUM,
        "{0} brings compilers and headers into the final image: several gigabytes "
        "that each node pulls, although nothing here compiles",
        "run on the -runtime image of the same version; compile in a first stage (multi-stage build)",
        confidence=LIKELY,
    ),
    Fault(
        "FROM",
        r"^\S*(cuda|pytorch)\S*-devel\S*",
        LOW,
        "{0} brings compilers and headers, gigabytes that each node pulls",
        "compile in a first stage (multi-stage build); run on the -runtime image",
    ),
    Fault(
        "RUN-TEXT",
        r"(wget|curl)\b[^\n;&|]*\.(zip|tgz|tar\S*|gz)\b(?![\s\S]*\brm\b)[\s\S]*&&[^\n" r"|]*\b(tar|unzip) ",
        LOW,
        "the archive stays in this layer, next to the files unpacked from it",
        "remove it in the same RUN, or pipe the download into tar",
        confidence=LIKELY,
    ),
    Fault(
        "RUN",
        r"^apt(-get)? (-\S+ )*install.*",
        LOW,  # the size of the packages is unknown, and other bases may have removed that file
        "{0}: {base} removes the packages after each install (docker-clean), so the cache mount stays empty",
        "rm -f /etc/apt/apt.conf.d/docker-clean above it",
        needs=r"type=cache[^\n]*/var/cache/apt[^\n]*\n$",
        unless="docker-clean|Keep-Downloaded|keep-cache",
    ),
    Fault(
        "START",
        r".*",
        LOW,
        "{0} runs as root: the files that it writes to mounted folders belong to root",
        "RUN useradd --create-home app, and USER app at the end",
        unless=r"(?m)^USER (?!root|0)",
    ),
    Fault(
        "WORKDIR",
        r"^(?![/$\"'~]|[A-Za-z]:).*",
        LOW,
        "WORKDIR {0} is relative: it depends on the base's folder",
        "give an absolute path",
    ),
    Fault(
        "COPY ADD",
        r"^\S.*",
        LOW,
        "{0} belongs to root despite the USER above: {user} cannot write there",
        "COPY --chown=USER",
        needs=r"(?m)^USER (?!root|0)[\s\S]*\n[^\n]*\n\Z",
        unless=r"chown[^\n]*\n\Z|USER root",
    ),
    Fault(
        "ENV",
        r"^DEBIAN_FRONTEND=.*",
        LOW,
        "ENV {0} stays set for every user of the image",
        "ARG DEBIAN_FRONTEND=noninteractive",
    ),
    Fault(
        "HEALTHCHECK",
        r"import torch|torch\.cuda|nvidia-smi|transformers",
        MEDIUM,
        "HEALTHCHECK starts {0} again and again: it takes CPU time and GPU memory from training",
        "test a file or port of the training process, at most once every few minutes",
        unless=r"interval', value='(\d+m|\d+h|[1-9]\d\d+s)",
    ),
    Fault(
        "VOLUME",
        r".+",
        LOW,  # a mount at the start takes its place
        "VOLUME {0}: each container gets a new anonymous volume there; files saved there are "
        "lost with it, and the image's files are copied at each start",
        "mount a named volume when the container starts",
        confidence=LIKELY,
    ),
    Fault(
        "RUN",
        r"^(python[\d.]* -m )?pip[\d.]* .*(\s(pytest|black|flake8|mypy|ruff|jupyter(lab)?"
        r"|notebook|pre-commit|sphinx)\b|(dev|test)[\w-]*\.txt|\.\[\w*(dev|test)).*"
        r"|^apt(-get)? .*\b(build-essential|g\+\+|cmake)\b.*",
        LOW,
        "{0}: development tools stay in the final image",
        "install them in another stage (multi-stage build)",
        unless=r"purge|autoremove",
    ),
    Fault(
        "START",
        r"^(pip[\d.]* install|python[\d.]* -m (pip install|spacy download|nltk\.downloader)"
        r"|(poetry|pdm|npm) (ci|install)"
        r"|uv (sync|pip install)|apt(-get)? .*install|(huggingface-cli|hf) download|wget |curl "
        r".*https?:|git clone|aws s3 (cp|sync)|gsutil|gdown|rclone|azcopy|(conda|mamba) (env|install)).*",
        MEDIUM,
        "{0} runs at each start of the container: every node repeats the download at run time while its GPUs wait",
        "do it in the image (RUN), or on a persistent volume",
    ),
)


@lint_rule("costly-image-setting", "the image slows down or limits every training run", reads="dockerfile")
def costly_setting(build: DockerBuild) -> Iterator[LintFinding]:
    """## What it does
    Looks for `ENV` settings of CUDA, NCCL, torch and OpenMP that are meant for debugging, are right for only one
    process, or hide the GPUs. Also looks for search paths that are replaced, health checks that import torch, anonymous
    volumes, and downloads at each start.

    ## Why it costs
    The image applies these settings to every job: kernels run synchronously, traffic goes through the host, each
    process has a single thread, all processes have the same rank, or no GPU is visible at all.

    ## How to recognize it
    The rule goes by the name and value of each setting, in the stages that make up the final image.

    ## What to do
    Remove the setting from the image, and set it only for the run that needs it.

    ## When it is wrong
    Ignore the finding if all machines that run the image need the setting.
    """
    yield from find_faults(COSTLY, build.final)
