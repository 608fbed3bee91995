# %% [markdown]
# A library crashes the kernel.

# %%
import ctypes

print("the last line")
ctypes.string_at(0)

# %%
print("not reached")
