"""`sciml lab` as a process of its own, and headless Chromium to look at it. Nothing leaves loopback.

Whatever the lab starts carries the test's SCIML_DATA in its environment; by that it is found again, and ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.request import Request, urlopen

import psutil
import pytest
from playwright.sync_api import Error, Page, sync_playwright
from playwright.sync_api import Request as BrowserRequest

T = TypeVar("T")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    # No name is looked up: what a page wants from another host fails here as it does on a compute node.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


def until(what: str, ask: Callable[[], T], timeout_s: float, *, every_s: float = 0.1) -> T:
    """Ask until the answer is true; AssertionError when it never was."""
    end = time.monotonic() + timeout_s
    while not (answer := ask()):
        assert time.monotonic() < end, f"waited {timeout_s:g} s in vain: {what}"
        time.sleep(every_s)
    return answer


def processes_of(home: Path) -> list[psutil.Process]:
    """Every living process that descends from the `lab` of this home, whoever adopted it since: its data folder is in
    their environment and in nobody else's."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get("SCIML_DATA") == str(home / "data")
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def names(processes: list[psutil.Process]) -> list[str]:
    """Number and command line of each, to print."""
    lines = []
    for process in processes:
        try:
            lines.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
        except psutil.Error:
            continue
    return lines


@dataclass
class Lab:
    """A running JupyterLab. url has the token; folder is what it serves; log is what it printed."""

    process: subprocess.Popen[bytes]
    url: str
    token: str
    folder: Path
    home: Path
    log: Path

    def ask(self, path: str) -> Any:
        """The answer of its REST API."""
        request = Request(self.url + path, headers={"Authorization": f"token {self.token}"})
        with urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def page(self, path: str) -> str:
        """The address of a notebook in JupyterLab."""
        return f"{self.url}lab/tree/{path}?token={self.token}"

    def stop(self) -> None:
        """The server shuts its kernels down and ends."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(10)
                raise


@pytest.fixture
def lab(_alone: None, tmp_path: Path) -> Iterator[Lab]:
    """`sciml lab` in an empty folder of its own, with a token of ours, on a free port of loopback."""
    home, folder, log = Path(os.environ["HOME"]), tmp_path / "work", tmp_path / "lab.log"
    folder.mkdir()
    # A first start asks whether news may be fetched from the internet; this one is not asked and does not fetch.
    settings = home / "jupyter-config/lab/user-settings/@jupyterlab/apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false", "checkForUpdates": false}')
    token = secrets.token_hex(16)
    words = [str(Path(sys.executable).with_name("sciml")), "lab", "--no-browser", "--ServerApp.port=0"]
    if os.geteuid() == 0:
        words.append("--allow-root")
    with log.open("wb") as output:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env={**os.environ, "JUPYTER_TOKEN": token, "SCIML_DATA": str(home / "data")},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # `sciml lab` becomes JupyterLab, so the file that Jupyter writes about itself bears our child's number.
    about = home / "jupyter-runtime" / f"jpserver-{process.pid}.json"

    def address() -> str:
        assert process.poll() is None, f"sciml lab ended with {process.returncode}:\n{log.read_text()[-3000:]}"
        if not about.exists():
            return ""
        try:
            return str(json.loads(about.read_text())["url"])
        except ValueError:  # half written
            return ""

    try:
        server = Lab(process, until("sciml lab has an address", address, 60), token, folder, home, log)

        def answers() -> bool:
            try:
                return bool(server.ask("api/status"))
            except OSError:
                return False

        until("sciml lab answers", answers, 30)
        yield server
    finally:
        # Whatever a failed test left: server, kernel, keeper, ranks. A test that passes has looked before.
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        end = time.monotonic() + 20
        while (left := processes_of(home)) and time.monotonic() < end:  # a keeper may start ranks while we look
            for living in left:
                with contextlib.suppress(psutil.Error):
                    living.kill()
            psutil.wait_procs(left, timeout=2)


@dataclass
class Browser:
    """A page, what it asked of other hosts (in vain), and what its scripts complained about."""

    page: Page
    pictures: Path
    outside: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@pytest.fixture
def browser(_alone: None, tmp_path: Path) -> Iterator[Browser]:
    """One page of headless Chromium with a fresh profile. `pictures`: SCIML_SCREENSHOTS, else a folder of the test."""
    if CHROMIUM is None:
        pytest.skip("no chromium here; apt-get install chromium")
    pictures = Path(os.environ.get("SCIML_SCREENSHOTS") or tmp_path / "screenshots")
    pictures.mkdir(parents=True, exist_ok=True)
    print(f"screenshots: {pictures}")
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(tmp_path / "profile"),
            executable_path=CHROMIUM,
            headless=True,
            args=ARGUMENTS,
            viewport={"width": 1400, "height": 1000},
        )
        seen = Browser(context.pages[0] if context.pages else context.new_page(), pictures)
        try:

            def note(request: BrowserRequest) -> None:
                if not request.url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:", "about:")):
                    seen.outside.append(request.url)

            context.on("request", note)
            seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
            seen.page.set_default_timeout(30_000)
            yield seen
        finally:
            with contextlib.suppress(Error):
                seen.page.screenshot(path=pictures / "last.png")
            context.close()
