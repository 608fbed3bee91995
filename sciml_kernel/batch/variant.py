"""One variant of a grid, in a process of its own: `python -m sciml_kernel.batch.variant < SPEC`.

SPEC is JSON: notebook, parameters (name -> Python source), name, grid (path of its record), variant (number), cpus,
gpus, resume (path or null), timeout_s, cell_timeout_s, launch, parent (pid of the grid's process). The exit code is
that of `sciml batch`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

__all__ = ["EXIT_CODES", "main"]

EXIT_CODES = {"completed": 0, "failed": 1, "interrupted": 130, "timeout": 124, "cancelled": 143}


def main() -> int:
    spec: dict[str, Any] = json.loads(sys.stdin.read())
    if spec["cpus"]:
        os.sched_setaffinity(0, spec["cpus"])  # before any library counts them
    if spec["gpus"] is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(spec["gpus"])
    from sciml_kernel.pool.processes import die_with_parent

    die_with_parent(signal.SIGTERM)  # the grid was killed: end as cancelled, with a true record
    if os.getppid() != spec["parent"]:
        return EXIT_CODES["cancelled"]
    return _run(spec)


def _run(spec: dict[str, Any]) -> int:
    from functools import partial

    from sciml_kernel.batch import plan
    from sciml_kernel.batch.conduct import Limits, conduct
    from sciml_kernel.batch.ending import Ending
    from sciml_kernel.batch.literals import from_source
    from sciml_kernel.batch.progress import Lines
    from sciml_kernel.batch.run import execute, open_record
    from sciml_kernel.records import Record

    ending = Ending()
    with ending.signals():
        grid = Path(spec["grid"])
        given = {name: from_source(text) for name, text in spec["parameters"].items()}
        what = plan(spec["notebook"], given, name=spec["name"], runs_root=grid.parent)
        earlier = Record(Path(spec["resume"])) if spec["resume"] else None
        extra = {"variant": spec["variant"], **({"resumed_from": earlier.id} if earlier else {})}
        record = open_record(what, launch=spec["launch"], parent=grid, extra=extra)
        conduct(
            record,
            partial(execute, what),
            ending=ending,
            progress=Lines(),
            limits=Limits(spec["timeout_s"], spec["cell_timeout_s"]),
            earlier=earlier,
        )
    return EXIT_CODES[record.read()["status"]]


if __name__ == "__main__":
    sys.exit(main())
