# %% [markdown]
# A magic that can't do what it is asked.

# %%
print("the last line")

# %%
# %pool strat

# %%
print("not reached")
