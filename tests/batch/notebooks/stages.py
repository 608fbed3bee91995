# %% [markdown]
# Stages in every form: `with`, a tagged cell, in a loop; with functions, things changed in place, and what can't be kept.

# %% tags=["parameters"]
n: int = 3  # numbers
k: float = 2.0  # factor
fail: bool = True
data: str = ""  # file that a stage names as an input

# %%
import threading

import numpy as np
import sciml_kernel as sk


def scale(x):
    return k * x


log = []

# %%
with sk.stage("draw"):
    print("drawing")
    x = np.random.default_rng(1).normal(size=n)
    log.append("drawn")

# %% tags=["stage:scaled"]
print("scaling")
y = scale(x)
lock = threading.Lock()
y

# %%
for i in range(2):
    with sk.stage(f"part-{i}", inputs=[data] if data else ()) as part:
        print("part", i)
        z = y.sum() + i

# %%
with sk.stage("locked"):
    print("locking")
    locked = lock

# %%
sk.note("z", z)
sk.note("log", len(log))
if fail:
    raise ValueError("here")
