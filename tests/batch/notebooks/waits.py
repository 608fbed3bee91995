# %% [markdown]
# Starts a pool, says so in a file and waits for whatever ends it.

# %% tags=["parameters"]
sign: str = "waiting"  # file that is made when the cell waits

# %%
import sciml_kernel as sk

pool = sk.Pool.start(n=2, keep=True)

# %%
import pathlib, threading

print("the last line", flush=True)
pathlib.Path(sign).touch()
threading.Event().wait(600)

# %%
print("not reached")
