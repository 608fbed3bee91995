# %% [markdown]
# The kernel is killed in the middle of a cell.

# %%
import sciml_kernel as sk

pool = sk.Pool.start(n=1)

# %%
import os, signal

print("the last line")
os.kill(os.getpid(), signal.SIGKILL)

# %%
print("not reached")
