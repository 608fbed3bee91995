# %% [markdown]
# A training fails after the cell that started it has ended. The recipe does not exist on the ranks' data.

# %%
import os

from sciml_kernel import records

child = records.create("cosmoflow", "{}", parent=os.environ["SCIML_PARENT_RUN"])
child.start()
child.close("failed", {"type": "RunError", "message": "loss is nan", "rank": 1, "host": "n7", "step": 12})

# %%
print("the last line")
