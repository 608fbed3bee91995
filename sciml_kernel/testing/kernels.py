"""A running Jupyter kernel, driven as a notebook drives it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

__all__ = ["KernelSession"]


class KernelSession:
    """`run` returns (status, text of all output, displayed bundles, updates)."""

    def __init__(self, kernel_name: str = "sciml") -> None:
        self.manager = KernelManager(kernel_name=kernel_name)
        self.manager.start_kernel(extra_arguments=["--log-level=ERROR"])
        self.connect()

    def connect(self) -> None:
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    @property
    def pid(self) -> int:
        return int(self.manager.provisioner.pid)  # type: ignore[union-attr]

    @property
    def connection_file(self) -> Path:
        return Path(self.manager.connection_file)

    def run(self, code: str) -> tuple[str, str, list[dict[str, Any]], list[dict[str, Any]]]:
        texts: list[str] = []
        shown: list[dict[str, Any]] = []
        updates: list[dict[str, Any]] = []

        def hook(message: dict[str, Any]) -> None:
            content = message["content"]
            kind = message["msg_type"]
            if kind == "stream":
                texts.append(content["text"])
            elif kind == "error":
                texts.append(f"{content['ename']}: {content['evalue']}")
            elif kind == "execute_result":
                texts.append(content["data"]["text/plain"])
            elif kind == "display_data":
                shown.append(content)
            elif kind == "update_display_data":
                updates.append(content)

        reply = self.client.execute_interactive(code, output_hook=hook, timeout=90)
        return reply["content"]["status"], "".join(texts), shown, updates

    def reply(self, message_id: str) -> dict[str, Any]:
        """Content of the reply to a message on the shell channel; what waited there before it is dropped."""
        while (message := self.client.get_shell_msg(timeout=60))["parent_header"].get("msg_id") != message_id:
            pass
        return dict(message["content"])

    def do(self, code: str) -> str:
        """Run a cell that must not fail; return what it printed."""
        status, text, _, _ = self.run(code)
        assert status == "ok", text
        return text

    def begin(self, code: str, until: str) -> str:
        """Send a cell and return when it has printed `until`: it goes on running. The message's id, for `reply`."""
        identity = str(self.client.execute(code))
        text, deadline = "", time.monotonic() + 60
        while until not in text:
            assert time.monotonic() < deadline, text
            content = self.client.get_iopub_msg(timeout=60)["content"]
            text += content.get("text", "") + content.get("evalue", "")
        return identity

    def restart(self, *, now: bool = False) -> None:
        """As the restart button does it; now: as Jupyter does it after a crash."""
        self.client.stop_channels()
        self.manager.restart_kernel(now=now)
        self.connect()

    def kill(self) -> None:
        """kill -9, as the kernel of an operating system does it; return when it is dead."""
        self.manager.signal_kernel(9)
        process: Any = self.manager.provisioner.process  # type: ignore[union-attr]
        process.wait(timeout=10)

    def close(self, *, now: bool = False) -> None:
        """Shut it down on purpose; now: without asking it first."""
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=now)
        self.manager.cleanup_resources()
        self.manager.context.destroy()
