"""hotloop image: what a Dockerfile's rebuilds cost, and what each fix saves, in measured seconds."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hotloop import __version__
from hotloop.cli.options import option, output_options
from hotloop.cli.show import check_outputs, emit, show_report
from hotloop.core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ORDER, SUMMARY = 11, "build a Dockerfile with each fix, and keep the fixes that are proven faster"
LIMIT_S = 1800.0
KEPT_FREE_BYTES = 2_000_000_000
"""Free disk space to leave, without --limit-gb."""
WORK = "/var/tmp"
"""Where buildah keeps large files, too: /tmp may be in memory."""


ABOUT = {
    "description": (
        "Build a Dockerfile from scratch, after a code edit and after a requirements edit, in a temporary store. Each "
        "build runs without any fix and with each fix. Your files, images and store are not changed, except by --fix."
    )
}
OPTIONS = (
    option("path", metavar="PATH", help="the build context: the folder that you give to docker build"),
    option("--file", metavar="FILE", help="the Dockerfile (default: PATH/Dockerfile)"),
    option("--builder", choices=("buildah", "docker"), help="the program that builds (default: buildah, else docker)"),
    option("--edit", metavar="FILE", help="the code file to edit (default: the file that changes most often)"),
    option(
        "--requirements", metavar="FILE", help="the requirements file to edit (default: the file that is installed)"
    ),
    option("--build-arg", metavar="NAME=VALUE", action="append", default=[], help="as for docker build"),
    option("--fix", action="store_true", help="write fixes that are proven faster and give the same contents"),
    option(
        "--leave-out",
        action="store_true",
        help="with --fix: also write fixes that leave files out of the image (.git, data)",
    ),
    option("--diff", action="store_true", help="print the changes as a patch"),
    option(
        "--limit-s", type=float, default=LIMIT_S, metavar="S", help=f"seconds for all builds (default: {LIMIT_S:.0f})"
    ),
    option(
        "--limit-gb",
        type=float,
        metavar="GB",
        help="disk space that the builds may use (default: all free space except 2 GB)",
    ),
    option("--work", metavar="FOLDER", default=WORK, help=f"where the temporary store goes (default: {WORK})"),
    *output_options(kind="image"),
)


def execute(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from hotloop.ahead.image.fix import write_recipe
    from hotloop.ahead.image.measure import ImageRequest, find_ignore, measure_image
    from hotloop.core.errors import UsageError

    check_outputs(arguments.json, arguments.html)
    context = Path(arguments.path)
    if not context.is_dir():
        raise UsageError(f"{arguments.path}: no such folder; give the build context, and its Dockerfile with --file")
    if arguments.limit_s <= 0:
        raise UsageError(f"--limit-s {arguments.limit_s:g}: give a number of seconds above 0")
    context = context.resolve()
    dockerfile = Path(arguments.file).resolve() if arguments.file else context / "Dockerfile"
    work = Path(arguments.work)
    request = ImageRequest(
        context=context,
        dockerfile=dockerfile,
        builder=_choose_builder(arguments.builder),
        work=work,
        tool_version=__version__,
        build_args=_read_pairs(arguments.build_arg),
        edit=arguments.edit,
        requirements=arguments.requirements,
        limit_s=arguments.limit_s,
        least_free_bytes=_read_limit(work, arguments.limit_gb),
        with_left_out=arguments.leave_out,
    )
    measured = measure_image(request, (lambda text: None) if arguments.quiet else emit)
    show_report(measured.report, arguments, sys.stdout)
    if arguments.diff and arguments.json != "-":
        for variant in measured.report.variants:
            if variant.diff and (measured.proven is None or variant.verdict == "proven"):
                sys.stdout.write(f"# {variant.id}: {variant.title} ({variant.verdict})\n{variant.diff}\n")
    if arguments.fix and measured.proven is None:
        emit("nothing was written: none of the fixes that may be written is proven")
    elif arguments.fix and measured.proven is not None:
        for path in write_recipe(measured.before, measured.proven, dockerfile, find_ignore(context, dockerfile)):
            emit(f"changed {path}")
    return 0


def _choose_builder(name: str | None) -> Any:
    import shutil

    from hotloop.ahead.image.builders import BUILDERS

    return BUILDERS[name or ("docker" if shutil.which("docker") and not shutil.which("buildah") else "buildah")]


def _read_pairs(pairs: list[str]) -> dict[str, str]:
    wrong = next((pair for pair in pairs if "=" not in pair), None)
    if wrong is not None:
        raise UsageError(f"--build-arg {wrong}: give NAME=VALUE")
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def _read_limit(work: Path, limit_gb: float | None) -> int:
    """Bytes of the disk that stay free. Raises UsageError."""
    import shutil

    if not work.is_dir():
        raise UsageError(f"--work {work}: no such folder; give a folder on a disk with room for the image's layers")
    if limit_gb is None:
        return KEPT_FREE_BYTES
    if limit_gb <= 0:
        raise UsageError(f"--limit-gb {limit_gb:g}: give a number above 0")
    return max(0, shutil.disk_usage(work).free - round(limit_gb * 1e9))
