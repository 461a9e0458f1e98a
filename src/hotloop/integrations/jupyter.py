"""IPython magic: ``%load_ext hotloop.integrations.jupyter``, then ``%%hotloop`` at the top of a cell that trains.

The report is drawn under the cell: as a page in Jupyter, as text in a terminal; ``hotloop_report`` then has it.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display

from hotloop.core.errors import HotloopError
from hotloop.monitor import watch

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

FRAME = '<div><iframe srcdoc="{}" title="hotloop report" style="width:100%;height:{}px;border:0"></iframe></div>'


def load_ipython_extension(shell: InteractiveShell) -> None:
    """What ``%load_ext`` calls: adds ``%%hotloop`` to this shell."""
    shell.register_magics(HotloopMagics)


@magics_class
class HotloopMagics(Magics):
    @magic_arguments()
    @argument("--name", help="name of the run folder under .hotloop/, for the kernel's first %%%%hotloop")
    @argument("--deep", action="store_true", help="also time each operator for a few steps, as hotloop run --deep")
    @argument("--text", action="store_true", help="draw the report as text")
    @argument("--height", type=int, default=700, help="height of the page, in pixels (default: 700)")
    @cell_magic
    def hotloop(self, line: str, cell: str) -> None:
        """Record the training in this cell with hotloop.watch(), then draw the report.

        A kernel has one recording, which starts with its first %%hotloop cell and goes on until the kernel ends. The
        report is about everything recorded so far; its largest training is on top.
        """
        from hotloop.judge.diagnose import RULES
        from hotloop.show.report import Surface, render

        assert self.shell is not None
        options = parse_argstring(self.hotloop, line)
        try:
            recording = watch(options.name, deep=options.deep)
        except HotloopError as error:
            raise UsageError(str(error)) from None
        result = self.shell.run_cell(cell)
        try:
            report = recording.report()
        except HotloopError as error:
            print(f"hotloop: no report: {error}")
        else:
            self.shell.push({"hotloop_report": report})
            surface = Surface(manuals={one.id: one.manual for one in RULES.values()})
            drawn = {"text/plain": render("terminal", report, surface)}
            if not options.text:
                drawn["text/html"] = FRAME.format(escape(render("html", report, surface)), options.height)
            display(drawn, raw=True)
        result.raise_error()
