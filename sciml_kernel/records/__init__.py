"""One run on disk: create it, follow it, close it, find it again.

root.py         where runs are kept
record.py       `Record`, `read`: one directory a run (DESIGN "Files on disk")
new.py          `create`: begin one
lineage.py      what a resumed run goes on from
fields.py       what `record.json` may hold, checked; `error_fields` turns an exception into its `error`
owner.py        which process a running record belongs to, and whether it still lives
files.py        atomic writes
environment.py  versions, lock, builds: what a run was made with; `hardware` the machine, `git` the repository
secrets.py      what never gets into a record, and which environment variables do
find.py         an id, the beginning of one, or a path -> `Record`
table.py        one row a run
tidy.py         what runs reported, a row a number, as CSV, JSON or Parquet
compare.py      what runs differ in
notes.py        `note`: a notebook's own results
show.py         one run as text

Nothing here loads pandas or xarray before it is needed.
"""

from __future__ import annotations

from sciml_kernel.records.compare import Comparison, compare, environment_of, relative_difference
from sciml_kernel.records.environment import environment, lock_hash, versions
from sciml_kernel.records.fields import END_STATES, error_fields
from sciml_kernel.records.files import write_atomic
from sciml_kernel.records.find import find, newest
from sciml_kernel.records.git import git_state
from sciml_kernel.records.lineage import earlier_runs, left_off, lineage
from sciml_kernel.records.new import create
from sciml_kernel.records.notes import note
from sciml_kernel.records.owner import this_process
from sciml_kernel.records.record import Record, read
from sciml_kernel.records.root import runs_root
from sciml_kernel.records.secrets import is_secret_name, mask
from sciml_kernel.records.show import show
from sciml_kernel.records.table import list_runs
from sciml_kernel.records.tidy import final_values, parts, runs_table, tidy, write_table
from sciml_kernel.records.usage import process_usage

__all__ = [
    "END_STATES",
    "Comparison",
    "Record",
    "compare",
    "create",
    "earlier_runs",
    "environment",
    "environment_of",
    "error_fields",
    "final_values",
    "find",
    "git_state",
    "is_secret_name",
    "left_off",
    "lineage",
    "list_runs",
    "lock_hash",
    "mask",
    "newest",
    "note",
    "parts",
    "process_usage",
    "read",
    "relative_difference",
    "runs_root",
    "runs_table",
    "show",
    "this_process",
    "tidy",
    "versions",
    "write_atomic",
    "write_table",
]
