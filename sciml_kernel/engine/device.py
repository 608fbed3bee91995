"""One rank's device, threads, seeds and precision. Called before the first TensorFlow operation of a training.

The GPU goes by local rank, as a rank that takes the first one it sees would share it with all others on the node.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from sciml_kernel.errors import EnvironmentNotFitError

__all__ = ["configure", "quiet", "seed_all", "threads_per_rank"]


def quiet() -> None:
    """Keep TensorFlow's start-up notes out of the cell. Call before TensorFlow is imported; what is set stays."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def threads_per_rank(local_size: int) -> int:
    """Threads inside one operation: TF_NUM_INTRAOP_THREADS, else OMP_NUM_THREADS, else this rank's share of the cores
    that the process may use. Never less than 1."""
    for name in ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"):
        text = os.environ.get(name, "")
        if text.isdigit() and int(text) > 0:
            return int(text)
    return max(1, len(os.sched_getaffinity(0)) // local_size)


def configure(*, local_rank: int, local_size: int, precision: str) -> str:
    """Choose the device and the precision of the layers; return the device's name.

    precision: a Keras policy, "float32" or "mixed_bfloat16". Threads and devices can be set once a process; a second
    training finds them set. Raises EnvironmentNotFitError when there are GPUs, but none for this rank.
    """
    import keras
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    device = _use_gpu(tf, gpus, local_rank, local_size) if gpus else _use_cpu(tf, local_size)
    keras.mixed_precision.set_global_policy(precision)
    return device


def seed_all(seed: int) -> None:
    """Seed Python, numpy, TensorFlow and Keras, the same on every rank, and forget the layers of earlier trainings.

    Operations are made deterministic on CPUs, and on GPUs where TF_DETERMINISTIC_OPS=1 asks for it: there some
    operations have no deterministic form and others are much slower.
    """
    import keras
    import tensorflow as tf

    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    if not tf.config.list_physical_devices("GPU") or os.environ.get("TF_DETERMINISTIC_OPS") == "1":
        tf.config.experimental.enable_op_determinism()


def _use_gpu(tf: Any, gpus: list[Any], local_rank: int, local_size: int) -> str:
    # the scheduler may show each rank its own GPU only
    if len(gpus) not in (1, local_size) and len(gpus) < local_size:
        raise EnvironmentNotFitError(
            f"{local_size} ranks on {platform.node()} and {len(gpus)} GPUs; start at most one rank a GPU"
        )
    gpu = gpus[local_rank] if len(gpus) > local_rank else gpus[0]
    try:
        tf.config.experimental.set_memory_growth(gpu, True)
        tf.config.set_visible_devices(gpu, "GPU")
    except RuntimeError:  # TensorFlow runs already: an earlier training has chosen
        pass
    details = tf.config.experimental.get_device_details(gpu)
    return f"{details.get('device_name', 'GPU')} ({gpu.name.rpartition(':')[0][-3:]}:{gpu.name.rpartition(':')[2]})"


def _use_cpu(tf: Any, local_size: int) -> str:
    threads = threads_per_rank(local_size)
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        if not os.environ.get("TF_NUM_INTEROP_THREADS"):
            tf.config.threading.set_inter_op_parallelism_threads(2)
    except RuntimeError:
        threads = tf.config.threading.get_intra_op_parallelism_threads() or threads
    return f"{_cpu_name()}, {threads} thread{'s' if threads != 1 else ''}"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine() or "CPU")
