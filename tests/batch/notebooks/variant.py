# %% [markdown]
# One variant of a grid: says which processors and GPUs it got, and fails where it is told to.

# %% tags=["parameters"]
n_ranks: int = 1
x: float = 1.0
tag: str = "a"
bad: bool = False
wait_for: str = ""  # file
signs: str = ""  # folder that gets a file named after the variant

# %%
import os, pathlib, time

import sciml_kernel as sk

begun = time.time()
if signs:
    pathlib.Path(signs, f"{x:g}-{tag}").touch()

# %%
print("cpus", sorted(os.sched_getaffinity(0)), "gpus", os.environ.get("CUDA_VISIBLE_DEVICES"))
while wait_for and not os.path.exists(wait_for):
    time.sleep(0.05)

# %%
with sk.stage("square"):
    print("squaring")
    square = x * x

# %%
if bad and not os.path.exists("mended"):
    raise ValueError(f"bad {tag}")
sk.note("square", square)
sk.note("begun", begun)
sk.note("ended", time.time())
