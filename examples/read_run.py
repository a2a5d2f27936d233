# %% [markdown]
# # Read a run and draw your own figure
#
# `remnant run` writes a folder for each seed. Its files are CSV and JSON, and `find_runs` reads them. Here two methods learn
# five permutations of scikit-learn's digits, and we draw how the first task fares and how full the layers get.
# It needs `pip install '.[cli,report]'`.

# %%
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np

from remnant.evaluation import average_accuracy, backward_transfer
from remnant.experiments import Plan, find_runs, resolve, run

runs = Path(mkdtemp()) / "runs"  # your own folder: Path("runs")
for method in ("gpm", "finetune"):  # the same as: remnant run permuted-digits gpm,finetune
    run(Plan(resolve("permuted-digits", method), seeds=(0,), root=runs, device="cpu"))

# %% [markdown]
# ## What is in a folder

# %%
for folder in find_runs(runs):
    matrix = folder.matrix()
    acc, bwt = average_accuracy(matrix), backward_transfer(matrix)
    files = sorted(file.name for file in folder.path.iterdir() if not file.name.startswith("."))
    print(f"{folder.settings['method']:<9} ACC {100 * acc:.1f} %  BWT {100 * bwt:+.1f} points  {', '.join(files)}")

# %% [markdown]
# ## A figure of your own
#
# The accuracy matrix R is an array: R[t, i] is the accuracy on task i after task t. `ranks()` has the directions that each
# layer remembered of each task.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8))
for folder in find_runs(runs):
    R = folder.matrix().values
    left.plot(range(1, len(R) + 1), 100 * R[:, 0], "o-", label=folder.settings["method"])
left.set(xlabel="tasks learnt", ylabel="accuracy on task 1, %", ylim=(0, 102), xticks=range(1, len(R) + 1))
left.legend()

gpm = next(folder for folder in find_runs(runs) if folder.settings["method"] == "gpm")
for layer, added in gpm.ranks().items():
    right.plot(range(1, len(added) + 1), np.cumsum(added), "o-", label=layer)
right.set(xlabel="tasks learnt", ylabel="directions remembered", xticks=range(1, len(R) + 1))
right.legend()
figure.tight_layout()
plt.show()
