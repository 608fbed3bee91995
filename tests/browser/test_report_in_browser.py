"""The page of a batch run and the page of all runs, opened as files in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from sciml_kernel import records
from sciml_kernel.batch import run_notebook
from sciml_kernel.testing.notebooks import write_notebook

from .conftest import Browser

PLOT = """
import matplotlib.pyplot as plt
figure, axes = plt.subplots(figsize=(4, 2))
axes.plot([1, 3, 2]);
"""


@pytest.mark.browser
@pytest.mark.notebook
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_report_is_whole_without_a_server(kernel: None, folder: Path, browser: Browser) -> None:
    notebook = write_notebook(
        folder / "demo.ipynb",
        PLOT,
        "import sciml_kernel as sk\nsk.note('area', 0.125)\nprint('x' * 300)",
        parameters="rate: float = 0.5",
        markdown=["# A title with $\\sigma_8$"],
    )
    record = run_notebook(notebook)
    failed = run_notebook(write_notebook(folder / "bad.ipynb", "print('before')", "raise ValueError('no good')"))
    page, pictures = browser.page, browser.pictures
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    page.goto((record.path / "notebook.html").as_uri())
    assert page.locator(".sciml-status").inner_text() == "completed"
    widths = page.eval_on_selector_all("img", "images => images.map(image => image.naturalWidth)")
    assert len(widths) == 2  # the formula and the figure
    assert min(widths) > 0
    code = page.locator("details.sciml-code").nth(1)
    assert not code.get_by_text("axes.plot").is_visible()
    code.locator("summary").click()
    assert code.get_by_text("axes.plot").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.screenshot(path=pictures / "report.png", full_page=True)

    page.goto((failed.path / "notebook.html").as_uri())
    assert "ValueError: no good" in page.locator(".sciml-error").inner_text()
    assert page.locator("details.sciml-code[open]").count() == 1
    page.screenshot(path=pictures / "report-failed.png", full_page=True)

    page.goto((records.runs_root() / "index.html").as_uri())
    assert page.locator("tbody tr").count() == 2
    page.screenshot(path=pictures / "runs.png")
    page.get_by_text(record.id).click()
    page.wait_for_url("**/notebook.html")
    assert page.locator("h1").first.inner_text().startswith("demo")

    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert browser.complaints == []
