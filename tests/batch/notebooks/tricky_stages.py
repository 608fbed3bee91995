# %% [markdown]
# What a careless resume would get wrong: shared objects, changes in place, functions and classes, random numbers, names
# that are deleted or made on the way, a helper module beside the notebook.

# %% tags=["parameters"]
fail: bool = True
k: float = 2.0

# %%
import random
import sys

import numpy as np

import sciml_kernel as sk

sys.path.insert(0, ".")
import helper


class Thing:
    def __init__(self):
        self.values = [1]


np.random.seed(3)
random.seed(4)
things = [Thing()]
same_list = things
table = {"a": 1}
array = np.zeros(3)
view_of_array = array
doomed = "here"
counter = 0


def count():
    global counter, made_by_count
    counter += 1
    made_by_count = counter * 10


# %%
with sk.stage("one"):
    print("ran one")
    things.append(Thing())
    table["b"] = 2
    array[1] = 7.0
    del doomed
    count()
    drawn = np.random.normal() + random.random()
    pair = [things, things]
    alias = things

    def scaled(x):
        return k * x

    class Made:
        def factor(self):
            return k

    helped = helper.double(21)

# %%
after = np.random.normal() + random.random()
k = k + 1  # what the stage has defined must see this
sk.note("drawn", drawn)
sk.note("after", after)
sk.note("counter", counter)
sk.note("made", made_by_count)
sk.note("scaled", scaled(1.0))
sk.note("factor", Made().factor())
sk.note("helped", helped)
sk.note("array", view_of_array.sum())
sk.note("table", len(table))
sk.note("things", len(same_list))
sk.note("one object", pair[0] is pair[1] and alias is things and same_list is things and view_of_array is array)
sk.note("own class", isinstance(things[-1], Thing))
sk.note("gone", "doomed" not in globals())

# %%
with sk.stage("two"):
    print("ran two")
    things[-1].values.append(5)
    total = sum(sum(thing.values) for thing in things)

# %%
sk.note("total", total)
if fail:
    raise ValueError("here")
