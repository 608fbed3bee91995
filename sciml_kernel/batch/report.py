"""The page of a batch run: what ran and how it ended, then the notebook with its code folded.

One file that needs no server and no network: pictures and formulas are inside, and no script is loaded.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import nbformat
from jinja2 import DictLoader

from sciml_kernel import records
from sciml_kernel.records import Record, write_atomic
from sciml_kernel.records.table import run_seconds

__all__ = ["COLOURS", "write_page"]

COLOURS = {"completed": "#1a7f37", "failed": "#b91c1c", "running": "#0969da", "created": "#57606a"}
_OTHER = "#9a6700"

_TEMPLATE = """
{%- extends 'lab/index.html.j2' -%}
{% block html_head_js %}{% endblock %}
{% block html_head_js_mathjax %}{% endblock %}
{% block html_head_js_mermaidjs %}{% endblock %}
{% block jupyter_widgets %}{% endblock %}
{% block html_head_css %}<style>
.sciml-head{font-family:sans-serif;max-width:70em;margin:1em auto 2em;padding:0 1em}
.sciml-head h1{font-size:1.5em;margin:0 0 .4em}
.sciml-head table{border-collapse:collapse;margin:.6em 0;font-size:.92em}
.sciml-head th{text-align:left;vertical-align:top;padding:.15em 1.2em .15em 0;font-weight:600;white-space:nowrap}
.sciml-head td{padding:.15em 1em .15em 0;overflow-wrap:anywhere}
.sciml-status{color:#fff;border-radius:.8em;padding:.15em .8em;font-size:.7em;vertical-align:middle}
.sciml-error{border-left:4px solid #b91c1c;padding:.3em .8em;margin:.8em 0;background:#fef2f2;white-space:pre-wrap;
font-family:monospace;font-size:.9em}
main{max-width:70em;margin:auto}
details.sciml-code>summary{cursor:pointer;color:#57606a;font-family:monospace;font-size:.85em;padding:.1em 0 .1em 1em;
white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
.jp-OutputArea-output img{max-width:100%}
@media print{details.sciml-code{display:none}}
</style>{% endblock %}
{% block input_group %}<details class="sciml-code"{% if cell.metadata.sciml_open %} open{% endif %}>
<summary>{{ cell.metadata.sciml_summary | escape }}</summary>{{ super() }}</details>{% endblock %}
"""


def write_page(record: Record, content: Mapping[str, Any], target: Path) -> None:
    """Write the page of a batch run from its executed notebook.

    content: of `record.json`, with the status and error that it will have. Raises OSError, and what nbconvert raises
    for a notebook that it can't show.
    """
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(
        embed_images=True, extra_loaders=[DictLoader({"sciml.html.j2": _TEMPLATE})], template_file="sciml.html.j2"
    )
    exporter.log.setLevel("ERROR")  # it warns of pictures without alternative text
    node = _for_reading(nbformat.read(record.path / "notebook.ipynb", as_version=4), content)
    body, _ = exporter.from_notebook_node(node, resources={"metadata": {"name": record.id}})
    write_atomic(target, body.replace("<main>", _head(record, content) + "<main>", 1))


def _for_reading(node: Any, content: Mapping[str, Any]) -> Any:
    from sciml_kernel.views.formula import with_formulas

    error = content.get("error") or {}
    for index, cell in enumerate(node.cells):
        if cell.cell_type == "markdown":
            cell.source = with_formulas(cell.source)
        elif cell.cell_type == "code":
            lines = [line for line in cell.source.splitlines() if line.strip() and not line.startswith("#")]
            cell.metadata["sciml_summary"] = lines[0] if lines else "(nothing)"
            cell.metadata["sciml_open"] = index == error.get("cell")
            # HoloViews leaves outputs that hold nothing, and the exporter warns of each
            cell.outputs = [_picture_first(output) for output in cell.outputs if output.get("data", True)]
    return node


def _picture_first(output: Any) -> Any:
    """Of an output that is both, take the picture: its HTML may need scripts that only a live notebook has."""
    data = output.get("data", {})
    scripted = "<script" in str(data.get("text/html", "")) or "application/javascript" in data
    if scripted and any(kind in data for kind in ("image/png", "image/svg+xml")):
        output["data"] = {kind: value for kind, value in data.items() if kind.startswith(("image/", "text/plain"))}
    return output


def _head(record: Record, content: Mapping[str, Any]) -> str:
    status, error = str(content["status"]), content.get("error") or {}
    colour = COLOURS.get(status, _OTHER)
    words = f"<h1>{_text(content['name'])} <span class='sciml-status' style='background:{colour}'>{status}</span></h1>"
    if error:
        where = ", ".join(
            f"{key} {error[key]}" for key in ("cell", "rank", "host", "signal", "step") if error.get(key) is not None
        )
        said = f"{error.get('type')}: {error.get('message')}" + (f"\n({where})" if where else "")
        words += f"<div class='sciml-error'>{_text(said)}</div>"
    return f"<div class='sciml-head'>{words}{_table(_facts(record, content))}{_results(record)}{_files(record)}</div>"


def _facts(record: Record, content: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    seconds = run_seconds(dict(content))
    git = content.get("git") or {}
    versions = content.get("versions") or {}
    usage = (content.get("usage") or {}).get("kernel") or {}
    yield "run", _text(record.id)
    yield "started", _text(content.get("started_utc") or "-") + (f", {seconds:.1f} s" if seconds is not None else "")
    parameters = record.config().get("parameters", {})
    yield "parameters", _text(", ".join(f"{name} = {json.dumps(value)}" for name, value in parameters.items()) or "-")
    yield "ranks", _text(f"{content.get('ranks') or '-'} on {', '.join(content.get('hosts') or ['-'])}")
    yield "devices", _text("; ".join(dict.fromkeys(content.get("devices") or ["-"])))
    if usage.get("peak_memory_bytes"):
        yield "kernel", f"{usage['cpu_s']} s of processor, {usage['peak_memory_bytes'] / 2**20:.0f} MiB at most"
    changes = " with local changes" if git.get("dirty") else ""
    yield "commit", _text(f"{git.get('commit') or '-'}{changes}")
    named = [name for name in ("sciml-kernel", "tensorflow", "tensorflow-cpu", "horovod", "numpy") if name in versions]
    yield "packages", _text(", ".join(f"{name} {versions[name]}" for name in named) + f"; Python {content['python']}")
    yield "lock", _text(content.get("lock_sha256") or "-")
    yield "launched", f"<code>{_text(content.get('launch') or '-')}</code>"
    stages = content.get("extra", {}).get("stages", {})
    if stages:
        yield "stages", _text(", ".join(f"{name}: {entry['status']}" for name, entry in stages.items()))


def _results(record: Record) -> str:
    values = records.final_values(record)
    rows = [(_text(name), f"{value:.6g}") for name, value in values.items()]
    return f"<details open><summary>results, last values</summary>{_table(rows)}</details>" if rows else ""


def _files(record: Record) -> str:
    """Links to what else the record holds and to the runs of this batch; they work where the folder is."""
    names = ["record.json", "config.json", "notebook.ipynb", "logs/notebook.log", "metrics.jsonl"]
    names += ["local-changes.patch"]
    links = [f"<a href='{name}'>{name}</a>" for name in names if (record.path / name).exists()]
    links += [f"<a href='../{child.id}/record.json'>{_text(child.id)}</a>" for child in record.children()]
    return f"<p>{' · '.join(links)}</p>"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    """rows: (name, HTML)."""
    return "<table>" + "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in rows) + "</table>"


def _text(value: Any) -> str:
    return html.escape(str(value))
