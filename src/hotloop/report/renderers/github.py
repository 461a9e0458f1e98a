"""github: the Check as workflow commands, which GitHub shows as annotations at lines of a pull request."""

from __future__ import annotations

from hotloop.core.check import Check, CheckVerdict, Judged
from hotloop.report.document import Document, Surface, renderer
from hotloop.report.judged import relative_path, sentence_of, title_of
from hotloop.report.text import clean


@renderer("github", "GitHub Actions annotations", suffix=".txt", kinds=("check",))
def draw_github(document: Document, surface: Surface) -> str:
    """A line for each regression and for each inconclusive value that decides, then the verdict."""
    check: Check = document.subject
    lines = []
    for one in check.judged:
        if one.verdict is CheckVerdict.REGRESSION:
            lines.append(_command("error", one, surface))
        elif one.verdict is CheckVerdict.INCONCLUSIVE and one.decides:
            lines.append(_command("error" if surface.is_strict else "warning", one, surface))
    text = f"{check.verdict.value}: {len(check.judged)} values judged; noise: {check.noise}"
    lines.append(f"::notice title=hotloop check::{_data(text)}")
    return "\n".join(lines) + "\n"


def _command(level: str, one: Judged, surface: Surface) -> str:
    properties = []
    path = None if one.where is None else relative_path(one.where.file, surface.folder)
    if one.where is not None and path is not None:
        properties += [f"file={_property(path)}", f"line={max(1, one.where.line)}"]
    properties.append(f"title={_property(f'hotloop: {title_of(one)}')}")
    return f"::{level} {','.join(properties)}::{_data(sentence_of(one))}"


def _data(text: str) -> str:
    """Escaped as a workflow command's message: a line break would begin a command of its own."""
    return clean(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
