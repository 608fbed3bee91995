# %% [markdown]
# A training in a stage, between two others.

# %% tags=["parameters"]
n_ranks: int = 1
epochs: int = 150
lr: float = 1e-3

# %%
import sciml_kernel as sk
from sciml_kernel import cosmology

pool = sk.Pool.start(n=n_ranks)

# %%
with sk.stage("data"):
    print("simulating")
    folder = sk.data_root() / "universes"
    cosmology.make_universes(folder, n_sims=24, grid=16, box_size_mpc_h=128.0, seed=1)

# %%
with sk.stage("train"):
    print("training")
    run = sk.train(
        "cosmoflow", data=folder, pool=pool, network="compact", channels=(4,), dense=(8,), batch_size=4,
        epochs=epochs, learning_rate=lr, seed=3,
    )
    run.wait()
    figure = run.plot()

# %%
sk.note("loss", float(run.history["val/loss"][-1]))
print("epochs", run.history.sizes["epoch"])
pool.stop()
