# %% [markdown]
# A cell takes longer than a cell may.

# %%
import sciml_kernel as sk

pool = sk.Pool.start(n=1)

# %%
import threading

print("the last line", flush=True)
threading.Event().wait(600)

# %%
print("not reached")
