"""What must not get into a record: passwords, tokens, keys. And which environment variables do.

A record is shared with a paper. So variables are kept by a list of names, not by what they are not; and texts that may
hold anything (the launch command, the diff of the working tree) lose what looks like a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["MASK", "VARIABLES", "is_secret_name", "kept_variables", "mask"]

MASK = "***"

VARIABLES = (
    # How many threads and which devices: they change speed and the order of sums.
    "CUDA_VISIBLE_DEVICES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "MKL_NUM_THREADS", "OMP_*", "OPENBLAS_NUM_THREADS",
    "ROCR_VISIBLE_DEVICES",
    # How TensorFlow, Horovod and MPI compute and communicate.
    "FI_PROVIDER", "HOROVOD_*", "KERAS_BACKEND", "MPICH_*", "MPIR_CVAR_*", "NCCL_*", "NVIDIA_TF32_OVERRIDE",
    "OMPI_MCA_*", "TF_*", "UCX_NET_DEVICES", "UCX_TLS", "XLA_FLAGS",
    # Where the job ran.
    "LMOD_SYSTEM_NAME", "LOADEDMODULES", "SLURM_CLUSTER_NAME", "SLURM_CPUS_PER_TASK", "SLURM_GPUS_ON_NODE",
    "SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_JOB_PARTITION",
    "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE",
    # What else changes numbers or text.
    "HDF5_USE_FILE_LOCKING", "LANG", "LC_ALL", "MALLOC_ARENA_MAX", "PYTHONHASHSEED", "SCIML_DATA", "SCIML_RUNS",
    "SCIML_SITE_CONFIG", "TZ",
)  # fmt: skip
"""Names of the variables that are kept where they are set; `*` at the end stands for anything."""

_NAME = re.compile(
    r"(^|[_.-])(token|secret|secrets|password|passwd|passphrase|pwd|credential|credentials|apikey|(api|access|private"
    r"|secret|auth)[_-]?key)$",
    re.IGNORECASE,
)
_NAMES = r"(?:token|secrets?|password|passwd|passphrase|credentials?|(?:api|access|private|secret|auth)[_-]?key)"
_PATTERNS = [
    # name = "value", "name": "value", NAME=value, --name value, --name=value, -p name value
    re.compile(rf"(?i)\b([\w.-]*{_NAMES}[\"']?\s*[=:]\s*[\"'])([^\"'\n]+)(?=[\"'])"),
    re.compile(rf"(?i)\b([A-Za-z_]*{_NAMES}=)([^\s\"'&]+)"),
    re.compile(rf"(?i)((?:^|\s)(?:--|-p\s+)[\w.-]*{_NAMES}[\s=]+)([^\s]+)"),
    re.compile(r"(?i)(\b(?:bearer|basic)\s+)([A-Za-z0-9+/._~-]{12,}=*)"),
    re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s/:@]+:)([^\s/@]+)(?=@)"),  # scheme://user:password@host
    # forms that are nothing else: AWS, GitHub, GitLab, Slack, Hugging Face, JSON web token
    re.compile(r"()(\bAKIA[0-9A-Z]{16}\b)"),
    re.compile(r"()(\b(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-|hf_)[A-Za-z0-9_-]{16,})"),
    re.compile(r"()(\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,})"),
]
_KEY_BLOCK = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)


def is_secret_name(name: str) -> bool:
    """Whether a parameter or variable of this name holds a secret: `api_key`, `DB_PASSWORD`, but not `n_tokens`."""
    return _NAME.search(name) is not None


def mask(text: str) -> str:
    """The text with `***` in place of what looks like a secret. It errs on the side of hiding."""
    text = _KEY_BLOCK.sub(rf"\1 {MASK} \2", text)
    for pattern in _PATTERNS:
        text = pattern.sub(lambda found: found.group(1) + MASK, text)
    return text


def kept_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of `VARIABLES` that are set, sorted; masked, and none whose own name says that it is a secret."""
    exact = {name for name in VARIABLES if not name.endswith("*")}
    prefixes = tuple(name[:-1] for name in VARIABLES if name.endswith("*"))
    return {
        name: mask(value)
        for name, value in sorted(environ.items())
        if (name in exact or name.startswith(prefixes)) and not is_secret_name(name)
    }
