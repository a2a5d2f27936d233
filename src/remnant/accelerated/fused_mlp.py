"""A whole epoch as one GPU kernel (`cuda/mlp.cu`), for the small MLP and methods that only project gradients."""

import threading
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from remnant.data import Split
from remnant.methods import Method
from remnant.models import MLP
from remnant.training import Steps, Work

from .cuda_graph import CapturedValidation
from .cuda_program import Kernel, KernelError
from .manual_backward import LinearChain, is_linear_chain

CLUSTER, THREADS = 8, 256  # blocks that share a network; threads in each
WIDEST, MOST_INPUTS, MOST_CLASSES, MOST_ROWS = 128, 1024, 16, 16  # the sizes that fit into the registers
SOURCE = Path(__file__).parent / "cuda" / "mlp.cu"

_one_compilation = threading.Lock()


def fits(method: Method, batch: int) -> bool:
    """Whether the kernel can take the method's steps, if it compiles on this machine."""
    network = method.network
    return (
        isinstance(network, MLP)
        and len(network.hidden) == 2
        and max(p.shape[0] for p in network.hidden.parameters()) <= WIDEST
        and next(network.hidden.parameters()).shape[1] <= MOST_INPUTS
        and max(network.classes) <= MOST_CLASSES
        and batch <= MOST_ROWS
        and method.device.type == "cuda"
        and all(p.dtype == torch.float32 and p.is_contiguous() for p in network.parameters())
        and method.fast_form == "projected-sgd"
        and not method.label_smoothing
        and is_linear_chain(method)
    )


class FusedSteps(Steps):
    """The steps of `EagerSteps`, up to the order of additions. Call `compile` first."""

    validation = CapturedValidation

    def __init__(self, method: Method, train: Split, batch: int) -> None:
        super().__init__(method, train, batch)
        self.chain = LinearChain(method, train)
        self.kernels: dict[int, MlpKernel] = {}
        self.missing: KernelError | None = None  # why this machine cannot run the kernel

    def compile(self) -> None:
        """Compiles the kernels, which takes seconds the first time."""
        try:
            for rows in {min(self.batch, self.rows), self.tail} - {0}:
                self.kernels[rows] = MlpKernel(self.chain, rows)
        except KernelError as error:
            self.missing = error

    def epoch(self) -> Work[None]:
        self.loss.zero_()
        # The kernel reads this tensor later, as contiguous int64, so the attribute keeps it alive.
        self.order = self.new_order().to(self.loss.device, torch.int64).contiguous()
        whole = self.rows - self.tail
        for part in (self.order[:whole], self.order[whole:]):
            if len(part):
                self.kernels[min(self.batch, len(part))].take_steps(part, self.method.lr, self.loss)
        yield None


class MlpKernel:
    """The kernel for one network and one batch size. It changes the network's weights in place."""

    def __init__(self, chain: LinearChain, batch: int) -> None:
        hidden1, hidden2, head = chain.weights
        device = hidden1.device
        major, minor = torch.cuda.get_device_capability(device)
        if major < 9:
            have = f"this one has {major}.{minor}"
            raise KernelError(f"it needs a GPU with clusters of blocks (compute capability 9.0); {have}.")
        types = chain.x.dtype, chain.y.dtype
        if types != (torch.float32, torch.int64):
            raise KernelError("it reads float32 and int64, and the data is {} with labels in {}.".format(*types))
        aligned = hidden1.shape[1] % 4 == 0 and chain.x.data_ptr() % 16 == 0 and chain.inputs.data_ptr() % 16 == 0
        sizes = {
            "INPUTS": hidden1.shape[1],
            "HIDDEN1": hidden1.shape[0],
            "HIDDEN2": hidden2.shape[0],
            "CLASSES": head.shape[0],
            "BATCH": batch,
            "CLUSTER": CLUSTER,
            "ALIGNED": int(aligned),  # rows of x begin where sixteen bytes can be copied at once
        }
        self.chain, self.batch = chain, batch
        self.projections = [None if each is None else each.contiguous() for each in chain.projections]
        with _one_compilation:  # so that runs which need the same kernel do not compile it twice
            compiled = _compiled(tuple(sizes.items()), device)
        if isinstance(compiled, KernelError):
            raise compiled
        self.kernel = compiled

    def take_steps(self, order: Tensor, lr: Tensor, loss: Tensor) -> None:
        """Takes one step for every batch of these rows, and adds the batches' losses to `loss`."""
        data = (self.chain.x, self.chain.inputs, self.chain.y, order)
        matrices = (*self.chain.weights, *self.projections)
        self.kernel.launch(CLUSTER, THREADS, *data, *matrices, lr, loss, len(order) // self.batch)


@cache
def _compiled(sizes: tuple[tuple[str, int], ...], device: torch.device) -> Kernel | KernelError:
    """The compiled kernel. An error is cached too, because another attempt would fail after the same time."""
    try:
        return Kernel(SOURCE, "train_mlp", dict(sizes), device)
    except KernelError as error:
        return error
