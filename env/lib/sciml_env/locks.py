"""Reading the lock files that `uv pip compile --universal --generate-hashes` writes."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

__all__ = ["Lock", "normal"]

PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;\\]+)")


def normal(name: str) -> str:
    """Project name as PyPI compares them: `Scikit_Learn` -> `scikit-learn`."""
    return re.sub(r"[-_.]+", "-", name).lower()


class Lock:
    """One lock file: `blocks` holds (name, version, text), in file order; a name may come twice with other markers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text(encoding="utf-8")
        self.blocks: list[tuple[str, str, str]] = []
        for line in self.text.splitlines():
            pin = PIN.match(line)
            if pin:
                self.blocks.append((normal(pin[1]), pin[2], line))
            elif self.blocks and line.strip() and line[0] in " \t":
                name, version, text = self.blocks[-1]
                self.blocks[-1] = (name, version, f"{text}\n{line}")

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def versions(self, name: str) -> list[str]:
        return [version for known, version, _ in self.blocks if known == normal(name)]

    def version(self, name: str) -> str:
        """The pinned version; KeyError where there is none or more than one."""
        found = sorted(set(self.versions(name)))
        if len(found) != 1:
            raise KeyError(f"{self.path.name} pins {name} at {found or 'no version'}")
        return found[0]

    def only(self, *names: str) -> str:
        """Requirements text of these names alone."""
        wanted = {normal(name) for name in names}
        return "\n".join(text for name, _, text in self.blocks if name in wanted) + "\n"

    def without(self, *names: str) -> str:
        """Requirements text of all but these names."""
        dropped = {normal(name) for name in names}
        return "\n".join(text for name, _, text in self.blocks if name not in dropped) + "\n"
