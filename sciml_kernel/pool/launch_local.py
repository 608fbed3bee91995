"""The launcher for this machine: mpiexec of the mpich wheel, or of Open MPI."""

from __future__ import annotations

import os
from pathlib import Path

from sciml_kernel.errors import UsageError
from sciml_kernel.pool.spec import PoolSpec

__all__ = ["LocalLauncher", "forker"]

MOST_RANKS_PER_CORE = 8

# All ranks are on one machine and talk through shared memory. Left alone, each also opens a TCP port on the machine's
# network address. UCX and libfabric: what MPICH is built on. What Open MPI's mpiexec listens on can't be restricted.
SHARED_MEMORY_ONLY = {
    "mpich": {"UCX_TLS": "self,sm", "FI_TCP_IFACE": "lo", "FI_SOCKETS_IFACE": "lo"},
    "openmpi": {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader"},
}


def forker(mpiexec: str) -> Path | None:
    """MPICH's launcher for one machine, if it is there. Hydra's control port is open to the network and has no setting
    for that; this one has no port."""
    path = Path(mpiexec).with_name("mpiexec.gforker")
    return path if path.exists() else None


class LocalLauncher:
    """Ranks on this machine, connected over loopback."""

    name = "local"
    controller_ip = "127.0.0.1"
    options: frozenset[str] = frozenset()

    def check(self, spec: PoolSpec) -> list[str]:
        most = MOST_RANKS_PER_CORE * spec.cores
        if spec.n < 1:
            raise UsageError(f"a pool needs at least 1 rank, got n={spec.n}; write n=1 or more")
        if spec.n > most:
            raise UsageError(
                f"n={spec.n} ranks on {spec.cores} cores is more than {MOST_RANKS_PER_CORE} a core; "
                f"write n={most} or less"
            )
        if spec.n > spec.cores and not spec.oversubscribe:
            return [
                f"{spec.n} ranks share {spec.cores} cores: calls are slower than with n={spec.cores}; "
                "oversubscribe=True says that this is meant"
            ]
        return []

    def command(self, spec: PoolSpec, wrapper: list[str]) -> list[str]:
        if spec.mpi_vendor == "mpich":
            if (found := forker(spec.mpiexec)) is not None:
                return [str(found), "-n", str(spec.n), *wrapper]
            # Named explicitly, because inside a batch job Hydra would go to the job's nodes.
            return [spec.mpiexec, "-launcher", "fork", "-hosts", "localhost", "-n", str(spec.n), *wrapper]
        if spec.mpi_vendor == "openmpi":
            return [spec.mpiexec, "--oversubscribe", "--bind-to", "none", "-n", str(spec.n), *wrapper]
        return [spec.mpiexec, "-n", str(spec.n), *wrapper]

    def variables(self, spec: PoolSpec) -> dict[str, str]:
        shared_memory = SHARED_MEMORY_ONLY.get(spec.mpi_vendor, {})
        if spec.mpi_vendor != "openmpi":
            return shared_memory
        wanted = shared_memory | {
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "OMPI_MCA_oob_tcp_if_include": "lo",
            "OMPI_MCA_odls_base_sigkill_timeout": "0",
        }
        if os.getuid() == 0:
            wanted |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return wanted
