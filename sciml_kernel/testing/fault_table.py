"""Runs the whole fault matrix from a shell, keeps what was measured in a file, and writes the table of FAULTS.md."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from sciml_kernel.pool.files import read_json, write_json
from sciml_kernel.testing.fault_files import CASES, killed_for_memory, run_case
from sciml_kernel.testing.fault_run import World, run_cell
from sciml_kernel.testing.fault_suite import FAULTS, LIMITS_S, MOMENTS, STOP_LIMIT_S, WORLDS, Cell, cells, impossible

__all__ = ["main", "table"]

_PACKAGES = ("ipyparallel", "mpi4py", "mpich", "horovod", "tensorflow-cpu")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Run the fault matrix. Cells that FILE holds already are not run again."
    )
    parser.add_argument("--results", type=Path, required=True, metavar="FILE", help="JSON, kept up to date")
    parser.add_argument("--world", choices=WORLDS, action="append", help="only this one; may be repeated")
    parser.add_argument("--moment", choices=MOMENTS, action="append")
    parser.add_argument("--fault", choices=FAULTS, action="append")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table there")
    given = parser.parse_args(arguments)
    found = read_json(given.results) or {"cells": {}, "cases": {}}
    for name in given.world or WORLDS:
        _run_world(name, given, found)
    if given.write:
        given.write.write_text(table(found), encoding="utf-8")
    failed = [key for part in ("cells", "cases") for key, value in found[part].items() if "failure" in value]
    print(f"{len(found['cells'])} of {len(cells())} cells, {len(found['cases'])} cases; failed: {failed or 'none'}")
    sys.exit(1 if failed else 0)


def _run_world(name: str, given: argparse.Namespace, found: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory(prefix="state-") as directory:
        world = World(name, Path(directory))

        def measure(part: str, key: str, work: Any) -> None:
            if "failure" in found[part].get(key, {"failure": ""}):
                try:
                    found[part][key] = work()
                except Exception as error:
                    found[part][key] = {"failure": f"{type(error).__name__}: {error}"[:600]}
                print(f"{key}: {found[part][key]}", flush=True)
                found["measured"] = _machine()
                write_json(given.results, found, durable=False)

        for cell in cells():
            if cell.world == name and _wanted(cell, given):
                measure("cells", str(cell), lambda cell=cell: run_cell(cell, world).to_json())
        if name != "fake" and not (given.moment or given.fault):
            for case in CASES:
                measure("cases", f"{name}: {case.what}", lambda case=case: _seen(run_case(case, world)))
            measure("cases", f"{name}: kernel kills a rank, memory ran out", lambda: _seen(_memory(world)))
        world.close()


def _wanted(cell: Cell, given: argparse.Namespace) -> bool:
    return (not given.moment or cell.moment in given.moment) and (not given.fault or cell.fault in given.fault)


def _seen(answer: tuple[str, float]) -> dict[str, Any]:
    return {"seen": answer[0], "seen_s": answer[1]}


def _memory(world: World) -> tuple[str, float]:
    with world.environment():
        return killed_for_memory(world.directory) or ("not tried: no control group can be made here", 0.0)


def _machine() -> dict[str, Any]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "cores": len(os.sched_getaffinity(0)),
        "system": f"Linux {'.'.join(platform.release().split('.')[:2])}, {platform.machine()}",
        "load": round(os.getloadavg()[1], 1),
        "versions": versions,
    }


# -- the table --------------------------------------------------------------------------------------------------------


def table(found: dict[str, Any]) -> str:
    """Markdown: a table a world, a row for each fault and moment."""
    facts = found.get("measured") or _machine()
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    lines = [
        "# What is seen when something breaks",
        "",
        "Written by `python -m sciml_kernel.testing.fault_suite --results FILE --write sciml_kernel/pool/FAULTS.md`;",
        "not edited by hand. Pools of two ranks. Seconds count from the fault until it is seen: the call raises,",
        "or `state` says `dead`. Then `restart()` gives the same number of ranks with rank == id, or `stop()`, called",
        "twice, leaves no process, directory, shared memory or session directory.",
        "",
        f"Measured {facts['date']} on {facts['cores']} cores ({facts['system']}), 5-minute load {facts['load']}:",
        f"{versions}. Single tries.",
        "",
        "Owed:",
        ",\n".join(f"{FAULTS[fault]} {limit:g} s" for fault, limit in LIMITS_S.items()),
        f"(at start the ranks get one more try, which takes as long as a start); `stop()` {STOP_LIMIT_S:g} s.",
    ]
    for world, words in WORLDS.items():
        lines += ["", f"## {world}: {words}", ""]
        lines += ["| when | what breaks | what is seen | state then | s | restart() s | stop() s |"]
        lines += ["|---|---|---|---|---|---|---|"]
        lines += [row for moment in MOMENTS for fault in FAULTS if (row := _row(found["cells"], fault, moment, world))]
        reasons = sorted({reason for f in FAULTS for m in MOMENTS if (reason := _never(f, m, world))})
        lines += ["", "Not there, because it can't be: " + "; ".join(reasons) + "."]
    lines += ["", "## Beside the ranks: files, other processes, hosts, memory", ""]
    lines += ["| world | what breaks | what is seen | s |", "|---|---|---|---|"]
    for key, value in found["cases"].items():
        world, _, what = key.partition(": ")
        lines += [f"| {world} | {what} | {_text(value)} | {value.get('seen_s', '')} |"]
    return "\n".join(lines) + "\n"


def _never(fault: str, moment: str, world: str) -> str:
    reason = impossible(Cell(fault, moment, world, "restart"))
    return f"{FAULTS[fault]} {MOMENTS[moment]} ({reason})" if reason and world != "fake" else reason


def _row(measured: dict[str, Any], fault: str, moment: str, world: str) -> str:
    first = measured.get(str(Cell(fault, moment, world, "restart")))
    second = measured.get(str(Cell(fault, moment, world, "stop")))
    if first is None and second is None:
        return ""
    one: dict[str, Any] = first or second or {}
    times = [str(value.get("seen_s", "failed")) for value in (first, second) if value]
    after = [str((value or {}).get("then_s", "-")) for value in (first, second)]
    cells_ = [MOMENTS[moment], FAULTS[fault], _text(one), one.get("state", "-"), ", ".join(times), *after]
    return f"| {' | '.join(cells_)} |"


def _text(value: dict[str, Any]) -> str:
    text = value.get("seen") or f"FAILED: {value.get('failure')}"
    return json.dumps(" ".join(text.split()), ensure_ascii=False)[1:-1].replace("|", "\\|").replace('\\"', '"')


if __name__ == "__main__":
    main()
