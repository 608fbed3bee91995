# %% [markdown]
# All is well, pool and all.

# %%
# %pool start -n 2

# %%
# %%ranks
print("hello")

# %%
print("the last line")
