"""The tour as a person opens it: JupyterLab, Run All, and looking."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from playwright.sync_api import Locator, Page

from .conftest import Browser, Lab, names, processes_of, until

TOUR = Path(__file__).parents[2] / "notebooks" / "00_tour.ipynb"
# Small, yet long enough for a figure that is redrawn every 3 s at most to be redrawn twice.
SMALL = {"n_sims": 96, "epochs": 80, "batch_size": 16}
RUN_MENU = '.lm-MenuBar-item:has-text("Run")'
RUN_ALL = '.lm-Menu-item[data-command="runmenu:run-all"]'
INDICATOR = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook-ExecutionIndicator"
ERROR = '.jp-RenderedText[data-mime-type="application/vnd.jupyter.error"]'


def small_tour(folder: Path) -> Path:
    """A copy of the tour with SMALL written into its parameters cell, as a person would."""
    notebook = nbformat.read(TOUR, as_version=4)
    cell = next(cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
    for name, value in SMALL.items():
        cell.source, n = re.subn(rf"(?m)^({name}: \w+ = )[^ #]+", rf"\g<1>{value}", cell.source)
        assert n == 1, f"no parameter {name} in {TOUR.name}"
    path = folder / TOUR.name
    nbformat.write(notebook, path)
    return path


def cell_with(page: Page, text: str) -> Locator:
    """The first code cell that has this in its source. All cells are in the page, also those out of sight."""
    return (
        page.locator(".jp-Notebook .jp-CodeCell").filter(has=page.locator(".jp-InputArea-editor", has_text=text)).first
    )


def drawings(cell: Locator) -> list[str]:
    """What the canvases of Bokeh show."""
    return list(cell.locator("canvas").evaluate_all("canvases => canvases.map(canvas => canvas.toDataURL())"))


def n_colours(cell: Locator) -> int:
    """Colours on the richest of these canvases; an empty one has 1."""
    counts = cell.locator("canvas").evaluate_all(
        """canvases => canvases.map(canvas => {
            const {width, height} = canvas
            if (!width || !height) return 0
            return new Set(new Uint32Array(canvas.getContext("2d").getImageData(0, 0, width, height).data.buffer)).size
        })"""
    )
    return max(counts, default=0)


def whole_page(page: Page, picture: Path) -> None:
    """The notebook from top to bottom: the window is made as high as it is long."""
    notebook = page.locator(".jp-WindowedPanel-outer").first
    for _ in range(2):  # what comes into sight for the first time gets its height then
        height = notebook.evaluate("element => element.scrollHeight")
        page.set_viewport_size({"width": 1400, "height": min(int(height) + 150, 12_000)})
        notebook.evaluate("element => element.scrollTo(0, 0)")
        page.wait_for_timeout(500)  # for the eye only: nothing is asserted on this picture
    page.screenshot(path=picture)


def read(record: Path) -> dict[str, Any]:
    return json.loads((record / "record.json").read_text())


def events(record: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (record / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.notebook
@pytest.mark.mpi
@pytest.mark.tf
@pytest.mark.horovod
@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_the_tour_runs_in_jupyterlab_with_a_moving_figure(lab: Lab, browser: Browser) -> None:
    page, pictures = browser.page, browser.pictures
    small_tour(lab.folder)
    page.goto(lab.page(TOUR.name))

    def kernels() -> list[dict[str, Any]]:
        return [session["kernel"] for session in lab.ask("api/sessions")]

    # The page says "idle" before it has a kernel; so the server is asked.
    until("the kernel is there", lambda: [kernel["execution_state"] for kernel in kernels()] == ["idle"], 60)
    assert [kernel["name"] for kernel in kernels()] == ["sciml"]
    assert "SciML" in page.locator(".jp-KernelName, .jp-Toolbar-kernelName").first.inner_text()
    page.wait_for_selector(INDICATOR + '[data-status="idle"]')

    page.click(RUN_MENU)
    page.click(RUN_ALL)

    # The live figure: there while the run goes on, and another one later, twice.
    training = cell_with(page, "sk.train(")
    image = training.locator(".jp-OutputArea-output img")
    image.wait_for(state="visible", timeout=120_000)
    training.scroll_into_view_if_needed()
    (record,) = [path.parent for path in Path(os.environ["SCIML_RUNS"]).glob("*/record.json")]
    shown = [image.get_attribute("src")]
    for number in (1, 2):
        page.wait_for_function(
            "([cell, shown]) => { const image = cell.querySelector('.jp-OutputArea-output img');"
            " return image && !shown.includes(image.src) }",
            arg=[training.element_handle(), shown],
            timeout=90_000,
        )
        shown.append(image.get_attribute("src"))
        assert read(record)["status"] == "running", f"redrawn only {number - 1} times before the run was over"
        image.screenshot(path=pictures / f"training-{number}.png")
    page.screenshot(path=pictures / "page-while-training.png")
    working = names(processes_of(lab.home))

    page.wait_for_function(
        "cell => /\\[\\d+\\]/.test(cell.querySelector('.jp-InputPrompt').textContent)",
        arg=cell_with(page, "pool.stop()").element_handle(),
        timeout=120_000,
    )
    page.wait_for_selector(INDICATOR + '[data-status="idle"]')
    assert page.locator(ERROR).all_inner_texts() == []

    # The explorer is alive: when its first slider moves, the kernel sends another slice.
    explorer = cell_with(page, "views.quicklook(")
    explorer.scroll_into_view_if_needed()
    until("the explorer is drawn", lambda: n_colours(explorer) > 20, 30)
    before = drawings(explorer)
    explorer.locator('.noUi-handle[role="slider"]').first.press("ArrowRight")
    until("the explorer shows another slice", lambda: drawings(explorer) != before, 30)
    explorer.get_by_text("sample: 1").wait_for()
    explorer.screenshot(path=pictures / "explorer.png")

    for name, text in (("errors", "views.error_table("), ("predicted", "views.predicted_against_true(")):
        cell = cell_with(page, text)
        cell.scroll_into_view_if_needed()
        cell.screenshot(path=pictures / f"{name}.png")
    table = cell_with(page, "views.error_table(").locator("table")
    assert {"network", "ridge", "predict_the_mean"} <= set(table.locator("thead th").all_inner_texts())
    assert {"omega_m", "sigma_8", "n_s"} <= set(table.locator("tbody th").all_inner_texts())
    drawn = page.locator(".jp-Notebook .jp-OutputArea-output img").evaluate_all(
        "images => images.filter(image => image.naturalWidth > 100).length"
    )
    assert drawn >= 4
    whole_page(page, pictures / "whole.png")

    # The record says what the page said.
    assert read(record)["status"] == "completed"
    losses = [e["value"] for e in events(record) if e["name"] == "train/loss"]
    assert len(set(losses)) > 10
    assert losses[-1] < losses[0]
    assert browser.outside == [], "the page asked other hosts"
    assert browser.complaints == [], "errors of the page's scripts"

    # Saved, it holds its figures for a reader without a kernel.
    page.click('.jp-NotebookPanel-toolbar [data-jp-item-name="save"] jp-button')
    saved = lab.folder / TOUR.name
    until("the notebook is saved", lambda: '"image/png"' in saved.read_text(), 30)
    outputs = [o for cell in nbformat.read(saved, as_version=4).cells for o in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 5
    print(saved.stat().st_size)

    # While it trained there were ranks of MPI; with the lab everything is gone.
    of_ranks = [line for line in working if "sciml_kernel.pool.wrapper" in line and "mpiexec" not in line]
    assert len(of_ranks) == 2 * 3, working  # a wrapper, its engine and the engine's nanny
    assert sum("sciml_kernel.pool.keeper" in line for line in working) == 1, working
    lab.stop()
    until("all has ended", lambda: not processes_of(lab.home), 10)
