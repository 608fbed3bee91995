"""uv where it is to be had, else pip: making the venv and installing into it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from sciml_env.locks import Lock
from sciml_env.pythons import Python
from sciml_env.say import Log, SetupError, note

__all__ = ["Installer", "find_uv", "keep_uv", "kept_uv", "make_venv", "maker"]

OLDEST_UV = (0, 5)
TRIES = 4
BAD_CERTIFICATE = re.compile(r"invalid peer certificate|UnknownIssuer|CERTIFICATE_VERIFY_FAILED")


def find_uv(environ: Mapping[str, str]) -> str | None:
    """uv on PATH, if it is new enough."""
    uv = shutil.which("uv", path=environ.get("PATH", os.defpath))
    if uv is None:
        return None
    try:
        done = subprocess.run([uv, "--version"], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"(\d+)\.(\d+)", done.stdout)
    return uv if done.returncode == 0 and found and (int(found[1]), int(found[2])) >= OLDEST_UV else None


def _kept(cache: Path, lock: Lock) -> Path:
    return cache / "bin" / f"uv-{lock.version('uv')}"


def kept_uv(cache: Path, lock: Lock) -> str | None:
    """The locked uv that an earlier set-up kept: with it a new venv needs no network."""
    kept = _kept(cache, lock)
    return str(kept) if os.access(kept, os.X_OK) else None


def keep_uv(cache: Path, lock: Lock, venv: Path) -> None:
    """Keep the uv that was installed into this venv."""
    kept, inside = _kept(cache, lock), venv / "bin" / "uv"
    if inside.exists() and not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        new = kept.with_name(f".{kept.name}.{os.getpid()}")
        shutil.copy2(inside, new)
        new.rename(kept)


def maker(python: Python, uv: str | None) -> str:
    """How the venv is made: "uv", "venv" (with ensurepip) or "pip" (without). Raises where none of them goes."""
    if uv:
        return "uv"
    if python.has_venv and python.has_ensurepip:
        return "venv"
    if python.has_venv and python.has_pip:
        return "pip"
    major, minor, _ = python.version
    raise SetupError(
        f"{python.executable} has neither ensurepip nor pip, and uv is not on PATH: no venv can be made.\n"
        f"The one command that helps:  sudo apt-get install python{major}.{minor}-venv\n"
        "(without root: any of uv, conda or `module load python`, then run this again)"
    )


def make_venv(venv: Path, python: Python, uv: str | None, log: Log, env: Mapping[str, str]) -> None:
    how = maker(python, uv)
    venv.parent.mkdir(parents=True, exist_ok=True)
    if how == "uv":
        assert uv is not None
        command = [uv, "venv", "--quiet", "--python", python.executable, "--prompt", "sciml", str(venv)]
    else:
        command = [python.executable, "-m", "venv", "--prompt", "sciml", str(venv)]
        if how == "pip":
            command.insert(3, "--without-pip")
    log.run(command, what=f"making {venv}", env=env)


class Installer:
    """Installs into one interpreter's environment. `uv` None: with pip."""

    def __init__(
        self, python: Path, *, log: Log, env: Mapping[str, str], uv: str | None, offline: bool = False
    ) -> None:
        self.python = python
        self.log = log
        self.env = {"UV_HTTP_TIMEOUT": "120", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **env}
        # Behind a proxy that opens TLS, pip is often told of its certificate, and uv is not.
        certificates = env.get("PIP_CERT") or env.get("REQUESTS_CA_BUNDLE")
        if certificates and os.path.exists(certificates):
            self.env.setdefault("SSL_CERT_FILE", certificates)
        self.uv = uv
        self.offline = offline

    @classmethod
    def for_venv(
        cls, venv: Path, base: Python, lock: Lock, *, log: Log, env: Mapping[str, str], uv: str | None, offline: bool
    ) -> Installer:
        """With uv from PATH, else the locked uv put into the venv by pip, else pip."""
        python = venv / "bin" / "python"
        self = cls(python, log=log, env=env, uv=uv or find_uv({"PATH": str(venv / "bin")}), offline=offline)
        if self.uv is None:
            outer = None if (venv / "bin" / "pip").exists() else base.executable
            try:
                self._pip_install(lock.only("uv"), what="installing uv", outer=outer, tries=2)
                self.uv = find_uv({"PATH": str(venv / "bin")})
            except SetupError:
                note("uv can't be had here; pip is used instead (slower)")
                if outer:
                    self._pip_install(lock.only("pip"), what="installing pip", outer=outer)
        return self

    def _pip(self, *arguments: str, outer: str | None = None) -> list[str]:
        # With `outer`, a base interpreter's pip works on the venv; it installs nothing for itself (PEP 668).
        head = [outer, "-m", "pip", "--python", str(self.python)] if outer else [str(self.python), "-m", "pip"]
        return [*head, *arguments]

    def _pip_install(self, requirements: str, *, what: str, outer: str | None = None, tries: int = TRIES) -> None:
        with tempfile.TemporaryDirectory(prefix="sciml-") as directory:
            file = Path(directory) / "requirements.txt"
            file.write_text(requirements, encoding="utf-8")
            command = self._pip("install", "--no-input", "--require-hashes", "--no-deps", "-r", str(file), outer=outer)
            if self.offline:
                command.append("--no-index")
            self.log.run(command, what=what, env=self.env, tries=1 if self.offline else tries)

    def _uv(self, *arguments: str) -> list[str]:
        assert self.uv is not None
        command = [self.uv, "pip", arguments[0], "--python", str(self.python), *arguments[1:]]
        return [*command, "--offline"] if self.offline and arguments[0] == "install" else command

    def install_locked(self, requirements: str, *, what: str) -> None:
        """Install pinned requirements text with its hashes, byte-compiled."""
        if self.uv is None:
            self._pip_install(requirements, what=what)
            return
        with tempfile.TemporaryDirectory(prefix="sciml-") as directory:
            file = Path(directory) / "requirements.txt"
            file.write_text(requirements, encoding="utf-8")
            # --compile-bytecode works even where PYTHONDONTWRITEBYTECODE is set; without .pyc files four ranks start
            # half as fast, and a second user could never write them.
            command = self._uv("install", "--require-hashes", "--compile-bytecode", "-r", str(file))
            try:
                self.log.run(
                    command, what=what, env=self.env, tries=1 if self.offline else TRIES, give_up=BAD_CERTIFICATE
                )
            except SetupError as error:
                if not BAD_CERTIFICATE.search(str(error)) or "UV_SYSTEM_CERTS" in self.env:
                    raise
                note("the package index has a certificate of this site; trying again with the system's certificates")
                self.env |= {"UV_SYSTEM_CERTS": "true", "UV_NATIVE_TLS": "true"}  # the second is what older uv reads
                self.log.run(command, what=what, env=self.env, tries=TRIES)

    def install_wheel(self, wheel: Path) -> None:
        if self.uv is None:
            command = self._pip("install", "--no-deps", "--no-index", "--force-reinstall", str(wheel))
        else:
            command = self._uv("install", "--no-deps", "--no-index", "--compile-bytecode", "--reinstall", str(wheel))
        self.log.run(command, what=f"installing {wheel.name}", env=self.env)

    def install_project(self, project: Path, *, editable: bool) -> None:
        with tempfile.TemporaryDirectory(prefix="sciml-project-") as directory:
            source = project
            if not editable:  # building writes into the source tree, and here it can't
                source = Path(directory) / "project"
                copy_sources(project, source)
            flags = ["--no-deps", "--no-build-isolation", *(["--editable"] if editable else []), str(source)]
            if self.uv is None:
                command = self._pip("install", "--force-reinstall", "--no-index", *flags)
            else:
                command = self._uv("install", "--reinstall", "--no-index", "--compile-bytecode", *flags)
            self.log.run(command, what="installing this package", env=self.env)

    def uninstall(self, name: str) -> None:
        command = self._pip("uninstall", "-y", name) if self.uv is None else self._uv("uninstall", name)
        self.log.attempt(command, env=self.env)


def copy_sources(project: Path, target: Path) -> None:
    """What a build of the package needs, and nothing else."""
    shutil.copytree(project / "sciml_kernel", target / "sciml_kernel", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(project / name, target / name)
    for directory, _, files in os.walk(target):
        os.chmod(directory, 0o755)
        for file in files:
            os.chmod(Path(directory) / file, 0o644)
