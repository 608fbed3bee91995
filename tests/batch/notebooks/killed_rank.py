# %% [markdown]
# One rank of two is killed while the other waits for it.

# %%
# %pool start -n 2

# %%
# %%ranks
import os, signal
from mpi4py import MPI

print("the last line", flush=True)
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
MPI.COMM_WORLD.Barrier()

# %%
print("not reached")
