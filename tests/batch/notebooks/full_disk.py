# %% [markdown]
# The record can't take what a cell shows.

# %%
print("the first line")

# %%
from IPython.display import HTML

print("the last line")
HTML("x" * 200_000)

# %%
print("not reached")
