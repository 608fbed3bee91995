"""One run as text, for `sciml runs show`."""

from __future__ import annotations

from typing import Any

from sciml_kernel.errors import RecordError
from sciml_kernel.metrics.jsonl import read_events
from sciml_kernel.records.record import Record
from sciml_kernel.records.table import run_seconds

__all__ = ["show"]

_LAST_LINES = 5

_PACKAGES = (
    "sciml-kernel",
    "tensorflow",
    "tensorflow-cpu",
    "keras",
    "horovod",
    "mpich",
    "mpi4py",
    "ipyparallel",
    "numpy",
)


def show(record: Record) -> str:
    """Plain lines: what ran, how it ended, with what, the last value of each metric, the files.

    Raises NotFoundError or RecordError as `Record.read`.
    """
    content = record.read()
    seconds = run_seconds(content)
    git = content.get("git") or {}
    lines = [
        f"run       {record.id}",
        f"kind      {content.get('kind')}, {content.get('name')}",
        f"status    {content['status']}" + _owner(content),
        f"started   {content['started_utc'] or 'not yet'}",
        f"ended     {content['ended_utc'] or '-'}" + (f" ({seconds:.1f} s)" if seconds is not None else ""),
        f"ranks     {_or_dash(content.get('ranks'))} on {', '.join(map(str, content.get('hosts') or [])) or '-'}",
        f"devices   {', '.join(map(str, content.get('devices') or [])) or '-'}",
        f"seeds     {_pairs(content.get('seeds'))}",
        f"data      {_data(content.get('data'))}",
        f"launch    {_launch(content.get('launch'))}",
        f"git       {git.get('commit') or '-'}" + _changes(git),
        f"python    {content.get('python')}, lock {_or_dash(content.get('lock_sha256'))}",
        f"packages  {_pairs({name: v for name, v in (content.get('versions') or {}).items() if name in _PACKAGES})}",
        *_machine(content),
        *_usage(content.get("usage") or {}),
        *(f"stage     {name}: {one['status']}" for name, one in content["extra"].get("stages", {}).items()),
        f"digest    {content['digest']}",
        f"parent    {_or_dash(content.get('parent'))}",
        *(f"child     {run_id}" for run_id in content["children"]),
        *_error(content["error"]),
        *(_cell(cell) for cell in content.get("cells") or []),
        *_metrics(record),
        *_last_words(record, content["status"]),
        f"folder    {record.path}",
    ]
    return "\n".join(lines)


def _changes(git: dict[str, Any]) -> str:
    if not git.get("dirty"):
        return ""
    patch = f" ({git['patch']})" if git.get("patch") else ""
    new = f", new files: {', '.join(git['untracked'][:5])}" if git.get("untracked") else ""
    return f" with local changes{patch}{new}"


def _machine(content: dict[str, Any]) -> list[str]:
    """Hardware and what was built for it; a record of an earlier version lacks them."""
    hardware, build = content.get("hardware") or {}, content.get("build") or {}
    lines = []
    if hardware:
        memory = f"{hardware['memory_bytes'] / 2**30:.0f} GiB" if hardware.get("memory_bytes") else "-"
        gpus = ", ".join(hardware.get("gpus") or []) or "no GPU"
        cores = f"{hardware.get('cores_allowed')} of {hardware.get('cores')} cores"
        lines.append(f"machine   {hardware.get('cpu') or '-'}, {cores}, {memory}, {gpus}")
    mpi, horovod = build.get("mpi") or {}, build.get("horovod") or {}
    if mpi or horovod:
        lines.append(f"builds    {mpi.get('library_version') or '-'}; Horovod {horovod.get('version') or '-'}")
    return lines


def _usage(usage: dict[str, Any]) -> list[str]:
    parts = [("kernel", usage.get("kernel") or {})]
    parts += [(f"rank {one['rank']}", one) for one in usage.get("ranks", [])[:8]]
    words = [
        f"{name} {one['cpu_s']:.1f} s of processor, {one['peak_memory_bytes'] / 2**20:.0f} MiB"
        for name, one in parts
        if one.get("cpu_s") is not None and one.get("peak_memory_bytes") is not None
    ]
    return [f"usage     {'; '.join(words)}"] if words else []


def _owner(content: dict[str, Any]) -> str:
    if "owner_state" not in content:
        return ""
    owner = content["owner"] or {}
    state = content["owner_state"]
    seen = "owner alive" if state == "alive" else "owner can't be seen from here"
    return f" ({seen}: process {owner.get('pid')} on {owner.get('host')})"


def _error(error: dict[str, Any] | None) -> list[str]:
    if not error:
        return []
    where = ", ".join(
        f"{key} {error[key]}" for key in ("cell", "rank", "host", "signal", "step") if error[key] is not None
    )
    first, *rest = f"{error['type']}: {error['message']}".splitlines()
    return [f"error     {first}" + (f" ({where})" if where else ""), *(f"          {line}" for line in rest)]


def _cell(cell: dict[str, Any]) -> str:
    seconds = f" {cell['seconds']:.1f} s" if cell["seconds"] is not None else ""
    return f"cell {cell['index']:<4} {cell['status']}{seconds}"


def _metrics(record: Record) -> list[str]:
    try:
        events, _ = read_events(record.metrics_path)
    except RecordError as error:
        return [f"metrics   unreadable: {error}"]
    last = {event.name: event for event in events}
    width = max(map(len, last), default=0)
    return [
        f"metric    {name:<{width}}  {event.value:.6g}{' ' + event.unit if event.unit else ''}"
        f"  (step {event.step}, epoch {event.epoch})"
        for name, event in sorted(last.items())
    ]


def _last_words(record: Record, status: str) -> list[str]:
    """The last lines that a batch printed before it ended badly: its notebook may lack them."""
    if status == "completed":
        return []
    try:
        with (record.path / "logs" / "notebook.log").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 4000))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [f"printed   {line.rpartition(chr(13))[2][:200]}" for line in lines[-_LAST_LINES:]]


def _data(data: Any) -> str:
    if isinstance(data, list):
        return "; ".join(_data(part) for part in data) or "-"
    if not isinstance(data, dict):
        return "-"
    size = f", {data['size'] / 1e6:.1f} MB" if isinstance(data.get("size"), int) else ""
    checksum = f", sha256 {data['sha256']}" if data.get("sha256") else ""
    return f"{data.get('path', '-')}{size}{checksum}"


def _launch(launch: Any) -> str:
    return " ".join(map(str, launch)) if isinstance(launch, list) else _or_dash(launch)


def _pairs(values: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in (values or {}).items()) or "-"


def _or_dash(value: Any) -> str:
    return "-" if value is None else str(value)
