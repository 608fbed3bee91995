# %% [markdown]
# Fifty thousand lines: the run is fine and the notebook stays small.

# %%
for i in range(50_000):
    print(f"line {i}")

# %%
print("reached")
