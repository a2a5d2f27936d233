"""How tests start child processes that would each import torch: a server process imports it once and forks them."""

from __future__ import annotations

import multiprocessing

START = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
LOADED = ["remnant.experiments.execute", "sklearn.datasets", "torch._dynamo", "pytest"]
SHARDED = ["torch.distributed.fsdp", "torch.distributed.tensor.parallel"]
multiprocessing.set_forkserver_preload([*LOADED, *SHARDED])
