# %% [markdown]
# Says which parameters it got, and leaves a picture.

# %% tags=["parameters"]
epochs: int = 3
name: str = "a"
sizes: tuple[int, ...] = (1, 2)
rate: float = 1e-3  # from 0 to 1

# %%
print(repr((epochs, name, sizes, rate)))

# %%
import matplotlib.pyplot as plt

plt.plot(sizes);
