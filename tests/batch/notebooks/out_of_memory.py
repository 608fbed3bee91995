# %% [markdown]
# A cell asks for more memory than the kernel may have.

# %%
import resource

used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 200_000_000, resource.RLIM_INFINITY))

# %%
print("the last line", flush=True)
block = bytearray(2_000_000_000)

# %%
print("not reached")
