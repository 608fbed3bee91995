"""The page of a run and the page of all runs: what is to be seen, and that nothing is fetched."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from sciml_kernel import records
from sciml_kernel.batch.index_page import renew_index, write_index
from sciml_kernel.batch.report import write_page
from sciml_kernel.config.digest import canonical_json
from sciml_kernel.contracts import MetricEvent
from sciml_kernel.metrics.jsonl import JsonlSink
from sciml_kernel.records import Record
from sciml_kernel.views.formula import with_formulas

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def a_run(root: Path, *outputs: Any, status: str = "completed", error: dict[str, Any] | None = None) -> Record:
    config = canonical_json({"parameters": {"rate": 0.5, "name": "<b>"}, "parameters_python": {}})
    record = records.create("demo", config, root=root, kind="batch", launch="sciml batch demo.ipynb")
    cells = [
        new_markdown_cell("# Title with $\\Omega_m$"),
        new_code_cell("# a comment\nfirst = 1\nsecond = 2", outputs=list(outputs)),
        new_code_cell("raise_it()"),
    ]
    nbformat.write(new_notebook(cells=cells), record.path / "notebook.ipynb")
    with JsonlSink(record.metrics_path) as sink:
        sink.publish([MetricEvent(record.id, 0, 0, 0, "result/area", 0.125, "", 1.0)])
    record.start()
    record.close(status, error)
    return record


def page_of(record: Record) -> str:
    write_page(record, record.read(), record.path / "notebook.html")
    return (record.path / "notebook.html").read_text()


def loaded(page: str) -> list[str]:
    """Addresses that a browser would fetch by itself."""
    found = re.findall(r"<(?:script|img|link|iframe)[^>]+(?:src|href)=[\"']([^\"']+)", page)
    found += re.findall(r"url\([\"']?(https?:[^)\"']+)", page) + re.findall(r"@import[^;]+", page)
    return [address for address in found if not address.startswith("data:")]


def test_the_page_says_what_ran_and_how_it_ended(tmp_path: Path) -> None:
    page = page_of(a_run(tmp_path))
    head = page[page.index("class='sciml-head'") : page.index("<main>")]
    assert "demo <span class='sciml-status' style='background:#1a7f37'>completed</span>" in head
    assert "name = &quot;&lt;b&gt;&quot;, rate = 0.5" in head
    assert "sciml batch demo.ipynb" in head
    assert "<th>result/area</th><td>0.125</td>" in head
    assert "href='record.json'" in head


def test_nothing_is_fetched_and_pictures_are_inside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outputs = [new_output("display_data"), new_output("display_data", {"image/png": PIXEL})]
    record = a_run(tmp_path, *outputs)
    page = page_of(record)  # a warning would be an error here
    assert PIXEL[:40] in page
    assert loaded(page) == []
    assert "<script" not in page
    assert not caplog.records
    kept = nbformat.read(record.path / "notebook.ipynb", as_version=4).cells[1].outputs
    assert len(kept) == 2  # the notebook keeps what was there


def test_of_an_output_with_scripts_its_picture_is_shown(tmp_path: Path) -> None:
    live = {"text/html": "<script src='https://x.test/a.js'></script>", "image/png": PIXEL}
    page = page_of(a_run(tmp_path, new_output("display_data", live)))
    assert "x.test" not in page
    assert PIXEL[:40] in page


def test_code_is_folded_behind_its_first_line_and_a_failed_cell_is_open(tmp_path: Path) -> None:
    error = {"type": "ValueError", "message": "<no> good", "cell": 2, "rank": 1}
    page = page_of(a_run(tmp_path, status="failed", error=error))
    assert re.findall(r'<details class="sciml-code"( open)?(?:="")?>\s*<summary>([^<]*)', page) == [
        ("", "first = 1"),
        (" open", "raise_it()"),
    ]
    assert "ValueError: &lt;no&gt; good\n(cell 2, rank 1)" in page
    assert "style='background:#b91c1c'>failed" in page


def test_formulas_are_pictures_with_their_tex_as_text() -> None:
    found = with_formulas(r"of $\Omega_{\mathrm{m}}$ and $$\int_0^1 x\,dx$$ end")
    style = r'style="height:([\d.]+)em;vertical-align:(-?[\d.]+)em"'
    images = re.findall(rf'<img alt="([^"]+)" {style} src="data:image/svg', found)
    assert [alt for alt, _, _ in images] == [r"\Omega_{\mathrm{m}}", r"\int_0^1 x\,dx"]
    assert 0.8 < float(images[0][1]) < 1.6  # about a line of text high
    assert float(images[1][1]) > float(images[0][1])  # an integral is higher
    assert all(float(down) <= 0 for _, _, down in images)


@pytest.mark.parametrize(
    "text", ["costs $5 and $6", "`$x$`", "```\n$x$\n```", r"a \$x\$ b", "$ x $", "US$x$ y", "no formula"]
)
def test_what_is_no_formula_stays(text: str) -> None:
    assert with_formulas(text) == text


def test_tex_that_can_not_be_drawn_is_shown_as_it_is() -> None:
    assert with_formulas(r"$\begin{pmatrix}a<b\end{pmatrix}$") == r"<code>\begin{pmatrix}a&lt;b\end{pmatrix}</code>"


def test_the_page_of_all_runs_has_each_with_its_status_and_its_children_below(tmp_path: Path) -> None:
    record = a_run(tmp_path, status="failed", error={"type": "ValueError", "message": "<bad>"})
    child = records.create("cosmoflow", "{}", root=tmp_path, parent=record.id)
    (child.figures_dir / "training.png").write_bytes(b"x")
    other = a_run(tmp_path)
    page = write_index(tmp_path).read_text()
    assert "3 runs: 1 completed, 1 created, 1 failed" in page
    order = [page.index(f">{one.id}</a>") for one in (record, child)]
    assert order == sorted(order)
    assert f"<tr class='child'><td class='id'><a href='{child.id}/record.json'>" in page
    assert f"src='{child.id}/figures/training.png'" in page
    assert "ValueError: &lt;bad&gt;" in page
    assert f"href='{other.id}/" in page
    assert [address for address in loaded(page) if "://" in address] == []


def test_a_root_with_very_many_runs_gets_its_page_by_the_command_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sciml_kernel.batch.index_page.MOST_BY_ITSELF", 1)
    a_run(tmp_path)
    renew_index(tmp_path)
    (tmp_path / "index.html").unlink()
    a_run(tmp_path)
    renew_index(tmp_path)
    assert not (tmp_path / "index.html").exists()
