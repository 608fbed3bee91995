"""pytest plug-in of `env/test` in CI: a skipped test fails the run, since there every need must be met."""

from __future__ import annotations

from typing import Any

import pytest

SKIPPED = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SKIPPED] = []


def _note(config: pytest.Config, report: Any) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        config.stash[SKIPPED].append(f"{report.nodeid}: {reason}")


class _Watch:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        _note(self.config, report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        _note(self.config, report)


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.pluginmanager.register(_Watch(session.config))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if session.config.stash[SKIPPED] and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.stash[SKIPPED]:
        terminalreporter.section("skipped in CI: counted as failures", red=True)
        for line in config.stash[SKIPPED]:
            terminalreporter.line(line)
