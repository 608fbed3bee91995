# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: SciML
#     language: python
#     name: sciml
# ---

# %% [markdown]
# # A pool, and what happens when it breaks
#
# A pool is a set of MPI ranks that wait for work. This notebook starts one, uses it, and then breaks it in the ways that
# end an afternoon elsewhere: a rank raises while the others wait for it, a rank is killed, a cell runs for too long, the
# notebook goes away. Each time it measures how long it takes until you know, and shows what brings the ranks back.
#
# In batch: `sciml batch notebooks/01_pools.ipynb -p n_ranks 4`.

# %% tags=["parameters"]
n_ranks: int = 2  # MPI ranks of the pool, two at least
n_calls: int = 200  # calls whose round trip is measured

# %%
import signal
import subprocess
import sys
import threading
import time

import pandas as pd
import psutil

import sciml_kernel as sk
from sciml_kernel import errors, views

# %% [markdown]
# ## Start
#
# Each rank is a process of its own; together they are one MPI world, and rank *r* is engine *r*. `report()` looks at each
# of them. Nothing here is remembered from the start: a state is measured whenever it is asked for.

# %%
measured: dict[str, float] = {}  # seconds
begin = time.perf_counter()
pool = sk.Pool.start(n=n_ranks, oversubscribe=True)
measured["start"] = time.perf_counter() - begin
pool.report()

# %% [markdown]
# ## Work
#
# `%%ranks` runs a cell on all ranks. What they print carries their number; what several say alike is said once.

# %%
# %%ranks
import numpy as np
from mpi4py import MPI

share = np.arange(1000)[mpi_rank::mpi_size]  # every rank has its own part of 0 ... 999
total = MPI.COMM_WORLD.allreduce(int(share.sum()))
print(f"my part adds up to {share.sum()}")
print(f"all parts to {total}")  # 999 * 1000 / 2 = 499500

# %% [markdown]
# A function of a module, or of this notebook, is called on every rank; its values come back by rank. A round trip takes
# milliseconds:


# %%
def square_of_rank(offset: int) -> int:
    from mpi4py import MPI

    return MPI.COMM_WORLD.rank**2 + offset


print(pool.run(square_of_rank, 100))
trips = []
for _ in range(n_calls):
    begin = time.perf_counter()
    pool.run("os:getpid")
    trips.append(time.perf_counter() - begin)
f"{1e3 * pd.Series(trips).median():.1f} ms"

# %% [markdown]
# A *set-up cell* runs now and again on every new set of ranks: here go imports and constants.

# %%
# %%ranks --set-up=constants
box_size_mpc_h = 256.0

# %% [markdown]
# ## A rank raises while the others wait for it
#
# All ranks enter a collective, but the last one has raised before. MPI would wait for ever. The call ends here with the
# error of that rank; the others can't be saved (MPI knows no way out of a half-entered collective), so new ranks take
# their place, by themselves, and the set-up cell has run on them.


# %%
def half_a_collective() -> float:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if world.rank == world.size - 1:
        raise FloatingPointError("loss is not finite")
    return world.allreduce(1.0)


begin = time.perf_counter()
try:
    pool.run(half_a_collective)
except errors.RemoteError as error:
    measured["a rank raised"] = time.perf_counter() - begin
    print(error, *error.__notes__[-1:], sep="\n")
pool.execute("assert box_size_mpc_h == 256.0")  # waits for the new ranks
measured["new ranks"] = time.perf_counter() - begin - measured["a rank raised"]
pool

# %% [markdown]
# ## A rank is killed
#
# As by an administrator, or by the kernel when memory runs out. The pool says which rank it was, where, and by which
# signal; one call brings all ranks back.

# %%
victim = pool.report()["pid"].iloc[-1]
threading.Timer(0.5, psutil.Process(victim).kill).start()
begin = time.perf_counter() + 0.5
try:
    pool.run("time:sleep", 60.0)
except errors.PoolDeadError as error:
    measured["a rank was killed"] = time.perf_counter() - begin
    print(error)
pool

# %%
begin = time.perf_counter()
pool.restart()
measured["restart"] = time.perf_counter() - begin
pool

# %% [markdown]
# ## Interrupt
#
# Half a second into this cell the notebook gets the signal that the stop button sends. It reaches the ranks, they stop
# what they do, and they keep what they have.

# %%
pool.execute("kept = 40 + mpi_rank")
threading.Timer(0.5, psutil.Process().send_signal, [signal.SIGINT]).start()
begin = time.perf_counter() + 0.5
try:
    pool.execute("import time\ntime.sleep(60)")
except KeyboardInterrupt as error:
    measured["interrupt"] = time.perf_counter() - begin
    print(*error.__notes__)
pool.execute("print(kept)", on_output=lambda rank, stream, text: print(f"rank {rank}:", text, end=""))

# %% [markdown]
# ## A call that takes too long

# %%
begin = time.perf_counter()
try:
    pool.execute("while True: pass", timeout=1.0)
except errors.RunTimeoutError as error:
    measured["time limit of 1 s"] = time.perf_counter() - begin
    print(error)

# %% [markdown]
# ## Another notebook
#
# The pool is not tied to this process. A second one finds it by name, with all that lies on its ranks.

# %%
code = f"""
import sciml_kernel as sk, time
begin = time.perf_counter()
pool = sk.Pool.attach({pool.name!r})
print(f"attached in {{time.perf_counter() - begin:.2f}} s: {{pool}}")
"""
print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
sk.Pool.list()

# %% [markdown]
# ## What it took
#
# Orange: what was measured in this notebook. Grey: what we owe on an idle machine. On one that is busy with other things
# the bars grow; the order of things does not.

# %%
owed = {"start": 3.5, "a rank raised": 2.0, "new ranks": 4.0, "a rank was killed": 1.0, "restart": 4.0}
owed |= {"interrupt": 2.0, "time limit of 1 s": 3.0}
views.durations(measured, owed)

# %%
pool.stop()
pool
