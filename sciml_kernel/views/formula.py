"""Formulas as pictures, for pages that are read without a network: matplotlib's mathtext draws the TeX."""

from __future__ import annotations

import base64
import html
import io
import re

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.mathtext import MathTextParser

from sciml_kernel.views.plot import style

__all__ = ["formula_html", "with_formulas"]

_POINTS = 12.0
# As in Jupyter: no blank inside next to the dollars, no digit after the last one; code is left alone.
_TEX = re.compile(
    r"(```.*?```|`[^`\n]*`)|\$\$(.+?)\$\$|(?<![\\$\w])\$(?![\s$])([^$\n]+?)(?<![\s\\])\$(?!\d)", re.DOTALL
)


def with_formulas(markdown: str) -> str:
    """The text with an inline picture for each `$...$`, and one in a line of its own for each `$$...$$`."""

    def replace(found: re.Match[str]) -> str:
        code, block, inline = found.groups()
        if code is not None:
            return code
        drawn = formula_html(block if block is not None else inline)
        return f'\n<p style="text-align:center">{drawn}</p>\n' if block is not None else drawn

    return _TEX.sub(replace, markdown)


def formula_html(tex: str) -> str:
    """An <img> with the formula inside, its TeX as alternative text; the TeX as code where mathtext can't draw it."""
    text, font = f"${' '.join(tex.split())}$", FontProperties(size=_POINTS)
    try:
        with style():
            width, height, depth, *_ = MathTextParser("path").parse(text, dpi=72, prop=font)
            figure = Figure(figsize=(max(width, 1) / 72, max(height, 1) / 72))
            FigureCanvasSVG(figure)
            figure.text(0, depth / max(height, 1), text, fontproperties=font)
            picture = io.BytesIO()
            figure.savefig(picture, format="svg", transparent=True, metadata={"Date": None})
    except ValueError:
        return f"<code>{html.escape(tex)}</code>"
    data = base64.b64encode(picture.getvalue()).decode()
    size = f"height:{height / _POINTS:.3f}em;vertical-align:{-depth / _POINTS:.3f}em"
    return f'<img alt="{html.escape(tex, quote=True)}" style="{size}" src="data:image/svg+xml;base64,{data}">'
