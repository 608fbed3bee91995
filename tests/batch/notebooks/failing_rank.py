# %% [markdown]
# One rank of two raises while the other waits for it.

# %%
# %pool start -n 2

# %%
# %%ranks
from mpi4py import MPI

print("the last line", flush=True)
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 1:
    raise OSError("disk is gone")
MPI.COMM_WORLD.Barrier()

# %%
print("not reached")
