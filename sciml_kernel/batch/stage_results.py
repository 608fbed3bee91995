"""What a stage leaves: the values of variables, the state of random generators, and what its code was made of.

Values are pickled together, so that two names of one object stay two names of one object. What the notebook has from
outside of the stage (inputs, its own functions and classes) is not pickled but named, so that it stays one object too.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import random
import site
import sys
import sysconfig
import types
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sciml_kernel.errors import UsageError
from sciml_kernel.records import write_atomic

__all__ = ["Absent", "Kept", "file_mark", "local_modules", "random_marks", "read_results", "write_results"]

FILE = "results.pkl"
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


class Absent:
    """Stands for a result of a kept stage that can't be kept itself. Any use of it says so."""

    def __init__(self, name: str, stage: str, why: str) -> None:
        object.__setattr__(self, "_words", (name, stage, why))

    def __getattr__(self, attribute: str) -> Any:
        raise UsageError(str(self))

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise UsageError(str(self))

    def __str__(self) -> str:
        name, stage, why = self._words
        words = f"{name!r} was made in stage {stage!r}, which was not run again, and can't be kept"
        return f"{words} ({why}); make it outside of the stage"

    def __repr__(self) -> str:
        return f"<absent: {self}>"


@dataclass
class Kept:
    """names: results that are kept. absent: result -> why it is not."""

    names: list[str] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)


# -- values -----------------------------------------------------------------------------------------------------------


def write_results(
    folder: Path,
    namespace: Mapping[str, Any],
    names: Iterable[str],
    changed: Iterable[str],
    outside: Iterable[str],
    randoms: Iterable[str],
) -> Kept:
    """Write the values of the names into the folder. changed: those of them that were there before and were changed in
    place. outside: names of the notebook's that are no results. randoms: of which generators the state is a result.

    Raises OSError.
    """
    kept, wanted, changed = Kept(), {name: namespace[name] for name in names}, set(changed)
    from_before = {id(namespace[name]): name for name in outside if not isinstance(namespace[name], _PLAIN)}
    with_changed = from_before | {id(wanted[name]): name for name in changed if not isinstance(wanted[name], _PLAIN)}

    def dump(chosen: dict[str, Any], *, old: bool) -> bytes:
        return _dump(chosen, namespace, from_before if old else with_changed, wanted)

    for name, value in wanted.items():
        try:
            dump({name: value}, old=name in changed)
            kept.names.append(name)
        except Exception as error:  # pickling raises what a class likes
            kept.absent[name] = f"{type(value).__name__}: {(str(error).splitlines() or [''])[0][:120]}"
    content = {
        "changed": dump({name: wanted[name] for name in kept.names if name in changed}, old=True),
        "new": dump({name: wanted[name] for name in kept.names if name not in changed}, old=False),
        "random": {label: _get_state(label) for label in randoms},
    }
    write_atomic(folder / FILE, pickle.dumps(content))
    return kept


def read_results(folder: Path, namespace: MutableMapping[str, Any]) -> None:
    """Put the values into the notebook, and set the random generators to where they were at the stage's end.

    What the stage had changed in place is changed in place, so that other names of the same object see it as well.
    Nothing is changed where this raises, which is what unpickling raises.
    """
    content = pickle.loads((folder / FILE).read_bytes())
    changed = _load(content["changed"], namespace)
    stays = {name: namespace[name] for name, value in changed.items() if _can_change(namespace.get(name), value)}
    new = _load(content["new"], {**namespace, **changed, **stays})
    for name, old in stays.items():
        _change(old, changed[name])
    namespace.update({**changed, **stays, **{name: _at_home(value, namespace) for name, value in new.items()}})
    for label, state in content["random"].items():
        _set_state(label, state)


def _dump(value: Any, namespace: Mapping[str, Any], shared: Mapping[int, str], results: Mapping[str, Any]) -> bytes:
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def persistent_id(self, obj: Any) -> str | None:
            if isinstance(obj, type | types.FunctionType) and getattr(obj, "__module__", "") == "__main__":
                name = obj.__name__
                return name if name not in results and namespace.get(name) is obj else None
            return shared.get(id(obj))

    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()


def _load(data: bytes, names: Mapping[str, Any]) -> dict[str, Any]:
    class Unpickler(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> Any:
            return names[pid]

    found: dict[str, Any] = Unpickler(io.BytesIO(data)).load()
    return found


def _at_home(value: Any, namespace: MutableMapping[str, Any]) -> Any:
    """A function or class that the stage defined sees the notebook's variables, not copies of those from then."""
    if isinstance(value, types.FunctionType) and value.__module__ == "__main__":
        return _function_at_home(value, namespace)
    if isinstance(value, type) and value.__module__ == "__main__":
        for name, method in list(vars(value).items()):
            if isinstance(method, types.FunctionType):
                setattr(value, name, _function_at_home(method, namespace))
    return value


def _function_at_home(function: types.FunctionType, namespace: MutableMapping[str, Any]) -> types.FunctionType:
    home: Any = namespace
    new = types.FunctionType(function.__code__, home, function.__name__, function.__defaults__, function.__closure__)
    new.__kwdefaults__, new.__dict__ = function.__kwdefaults__, function.__dict__
    new.__qualname__, new.__doc__, new.__annotations__ = (
        function.__qualname__, function.__doc__, function.__annotations__,
    )  # fmt: skip
    return new


def _can_change(old: Any, new: Any) -> bool:
    """Whether an object can be made what it was at the stage's end, without another taking its place."""
    if type(old) is not type(new):
        return False
    if type(old).__name__ == "ndarray":
        return bool(old.shape == new.shape and old.dtype == new.dtype and old.flags.writeable)
    return isinstance(old, list | dict | set)


def _change(old: Any, new: Any) -> None:
    if isinstance(old, list):
        old[:] = new
    elif isinstance(old, dict | set):
        old.clear()
        old.update(new)
    else:
        old[...] = new


# -- random generators ------------------------------------------------------------------------------------------------


def random_marks() -> dict[str, str]:
    """Label -> mark of the state of each global random generator that is loaded."""
    labels = ["the state of random", *(["numpy's global random state"] if "numpy" in sys.modules else [])]
    return {label: hashlib.sha256(repr(_get_state(label)).encode()).hexdigest() for label in labels}


def _get_state(label: str) -> Any:
    if label.startswith("numpy"):
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        return name, keys.tolist(), *rest
    return random.getstate()


def _set_state(label: str, state: Any) -> None:
    if label.startswith("numpy"):
        import numpy as np

        np.random.set_state(state)
    else:
        random.setstate(state)


# -- code that is not installed ---------------------------------------------------------------------------------------


def local_modules() -> dict[str, str]:
    """Path -> sha256 of the file of each loaded module that belongs to no installed package: helpers beside a notebook,
    packages that are being worked on."""
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    places |= {*site.getsitepackages(), site.getusersitepackages()}
    installed = tuple(str(Path(place).resolve()) + "/" for place in places)
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    found = {str(Path(file).resolve()) for file in files if file and file.endswith(".py")}
    return {path: file_mark(path) for path in sorted(found) if not path.startswith(installed)}


def file_mark(path: str) -> str:
    """sha256 of a file; "" where there is none."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""
