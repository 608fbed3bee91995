# %% [markdown]
# A cell that goes on after an interrupt: the run ends all the same, and says so.

# %%
import threading

print("the last line", flush=True)
try:
    threading.Event().wait(600)
except KeyboardInterrupt:
    pass

# %%
print("not reached")
