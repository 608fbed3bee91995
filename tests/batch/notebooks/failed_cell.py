# %% [markdown]
# A cell raises: the run failed there, and what comes after was not run.

# %%
print("the last line")

# %%
raise ValueError("no good")

# %%
print("not reached")
