# %% [markdown]
# A bar of ten thousand steps, each redrawn.

# %%
import sys

for i in range(10_001):
    print(f"\rstep {i} of 10000 [{'#' * (i // 250):40}]", end="", flush=True, file=sys.stderr)

# %%
print("reached")
