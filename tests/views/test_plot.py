"""`Plot`: a figure of its own, that looks the same everywhere and says in words what is to be seen."""

from __future__ import annotations

import base64
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from PIL import Image
from view_helpers import dataset, event, pixels, training

from sciml_kernel.views import Plot, training_curves
from sciml_kernel.views.plot import parameter_label, style, write_png


def picture() -> bytes:
    return training_curves(dataset(*training()), title="t").png()


def test_settings_of_the_reader_have_no_part_in_our_figures_and_stay() -> None:
    expected = picture()
    theirs: dict[str, Any] = {
        "lines.linewidth": 9.0,
        "font.size": 31.0,
        "axes.facecolor": "black",
        "savefig.bbox": "tight",
        "figure.dpi": 30.0,
        "axes.grid": False,
    }
    with matplotlib.rc_context(theirs):
        before = dict(matplotlib.rcParams)
        assert picture() == expected
        assert dict(matplotlib.rcParams) == before


def test_a_setting_changed_while_a_figure_is_drawn_survives() -> None:
    with matplotlib.rc_context():
        with style():
            matplotlib.rcParams["grid.color"] = "red"  # as another thread would; one that we change
            matplotlib.rcParams["lines.linewidth"] = 4.5  # one that we don't
        assert matplotlib.rcParams["grid.color"] == "red"
        assert matplotlib.rcParams["lines.linewidth"] == 4.5


def test_drawing_leaves_pyplot_alone() -> None:
    code = (
        "import sys, xarray as xr\n"
        "from sciml_kernel import views\n"
        "assert 'matplotlib' not in sys.modules, 'views are loaded on use'\n"
        "views.training_curves(xr.Dataset()).png()\n"
        "print('matplotlib.pyplot' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_words_go_with_the_picture() -> None:
    plot = Plot(3.0, 2.0, alt_text="A line that rises.")
    plot.add_subplot().plot([0, 1], [0, 1])
    bundle, metadata = plot._repr_mimebundle_()
    data = base64.b64decode(bundle["image/png"])
    with Image.open(io.BytesIO(data)) as image:
        assert image.info["Description"] == "A line that rises."
        assert image.size == (300, 200)  # 100 pixels an inch
    assert bundle["text/plain"] == "A line that rises."
    assert metadata == {"image/png": {"alt": "A line that rises."}}
    assert pixels(plot._repr_png_()).shape == (200, 300, 3)


def test_saving_makes_the_folder_and_a_file_that_others_may_read(tmp_path: Path) -> None:
    path = Plot(1.0, 1.0).save(tmp_path / "a" / "b.png")
    assert path == tmp_path / "a" / "b.png"
    assert path.stat().st_mode & 0o777 == 0o644
    pixels(path.read_bytes())


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_failed_write_leaves_the_earlier_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    path = write_png(b"earlier", tmp_path / "f.png")

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, fails, full)
    with pytest.raises(OSError, match="no space left"):
        write_png(b"later", path)
    assert path.read_bytes() == b"earlier"
    assert [entry.name for entry in tmp_path.iterdir()] == ["f.png"]


def test_parameters_have_symbols_that_matplotlib_can_draw() -> None:
    labels = [parameter_label(name) for name in ("omega_m", "sigma_8", "n_s", "h_0", "h")]
    assert all(label.startswith("$") for label in labels)
    plot = Plot(3.0, 1.0)
    plot.suptitle(" ".join(labels))
    pixels(plot.png())


def test_a_figure_of_one_report_is_drawn_without_warnings() -> None:
    pixels(training_curves(dataset(event("train/learning_rate", 0.0))).png())
