"""The page is reloaded while a training runs: what a person loses then (nothing that one call does not bring back)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from playwright.sync_api import Page

from sciml_kernel.testing.notebooks import write_notebook

from .conftest import Browser, Lab, processes_of, until

TRAIN = """
import sciml_kernel as sk
from sciml_kernel import cosmology
folder = sk.data_root() / "small"
cosmology.make_universes(folder, n_sims=48, grid=16, box_size_mpc_h=128.0, seed=1)
pool = sk.Pool.start(n=2, name="p")
run = sk.train("cosmoflow", data=folder, pool=pool, network="compact", epochs=3000, batch_size=16)
run.plot()
"""
CELLS = (TRAIN, "run.plot()", "run.interrupt()\nprint('is', run.status)", "pool.stop()\nprint('stopped')")


def run_cell(page: Page, number: int) -> Any:
    """Click into it and press Shift+Enter; return the cell."""
    cell = page.locator(".jp-Notebook .jp-CodeCell").nth(number)
    cell.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    return cell


def redrawn(page: Page, cell: Any, times: int, picture: Path) -> None:
    """Wait until its figure is there and was replaced that often."""
    image = cell.locator(".jp-OutputArea-output img")
    image.wait_for(state="visible", timeout=120_000)
    shown = [image.get_attribute("src")]
    for _ in range(times):
        page.wait_for_function(
            "([cell, shown]) => { const image = cell.querySelector('.jp-OutputArea-output img');"
            " return image && !shown.includes(image.src) }",
            arg=[cell.element_handle(), shown],
            timeout=60_000,
        )
        shown.append(image.get_attribute("src"))
    image.screenshot(path=picture)


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.notebook
@pytest.mark.mpi
@pytest.mark.tf
@pytest.mark.horovod
@pytest.mark.timeout(300)
def test_after_a_reload_the_training_goes_on_and_its_figure_moves_again(lab: Lab, browser: Browser) -> None:
    page, pictures = browser.page, browser.pictures
    page.on("dialog", lambda dialog: dialog.accept())
    name = "reload.ipynb"
    path = write_notebook(lab.folder / name, *CELLS)
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata.kernelspec = {"name": "sciml", "display_name": "SciML", "language": "python"}
    nbformat.write(notebook, path)

    def kernels() -> list[tuple[str, str]]:
        return [(s["kernel"]["id"], s["kernel"]["execution_state"]) for s in lab.ask("api/sessions")]

    page.goto(lab.page(name))
    until("the kernel is there", lambda: [state for _, state in kernels()] == ["idle"], 60)
    (before,) = [identity for identity, _ in kernels()]
    redrawn(page, run_cell(page, 0), 1, pictures / "before-reload.png")
    (record,) = [found.parent for found in Path(os.environ["SCIML_RUNS"]).glob("*/record.json")]

    def status() -> str:
        return str(json.loads((record / "record.json").read_text())["status"])

    def steps() -> int:
        return len((record / "metrics.jsonl").read_text().splitlines())

    page.reload()
    page.locator(".jp-Notebook .jp-CodeCell").nth(len(CELLS) - 1).wait_for()
    until("the page has its kernel again", lambda: [state for _, state in kernels()] == ["idle"], 60)
    assert [identity for identity, _ in kernels()] == [before]
    assert status() == "running"
    written = steps()
    redrawn(page, run_cell(page, 1), 2, pictures / "after-reload.png")
    assert status() == "running"
    assert steps() > written

    stopping = run_cell(page, 2)
    stopping.get_by_text("is interrupted").wait_for(timeout=60_000)
    page.screenshot(path=pictures / "interrupted.png")
    assert status() == "interrupted"
    run_cell(page, 3).get_by_text("stopped").last.wait_for(timeout=30_000)
    assert browser.outside == []
    assert browser.complaints == []
    lab.stop()
    until("all has ended", lambda: not processes_of(lab.home), 10)
