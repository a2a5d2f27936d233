"""Deep generative dual memory (Kamra et al., 2017): sleep moves tasks from a short-term memory to a long-term one."""

from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant.data import Split
from remnant.models import VAE, Network
from remnant.options import Positive

from .base import trainable
from .optimizers import adam, initial_state
from .parts.generative import Generative, Rate, best_class, step_with

SLEEP_BATCH = 100


class Memory(nn.Module):
    """A generator, and a solver that labels what it generates."""

    def __init__(self, generator: VAE, solver: Network) -> None:
        super().__init__()
        self.generator, self.solver = generator, solver

    def distance(self, x: Tensor) -> Tensor:
        """Returns the squared error with which the generator rebuilds each input."""
        return (self.generator.decode(self.generator.encode(x)[0]) - x).flatten(1).square().sum(1)


class DGDMN(Generative):
    """Each task trains a fresh memory in one of `slots`. When all are full, sleep teaches their tasks to the long-term memory.

    Sleep replays `samples` inputs for every task so far: tasks in slots from the slot's generator, earlier tasks from the
    long-term generator. The solver of the same memory labels them. The long-term generator and solver (which is the network)
    learn from them with Adam for `sleep` epochs, and the slots are free again.

    With one head, the memory that rebuilds an example best answers; with a head per task, the memory that holds the task.
    The paper gives no constants. A generator is a `VAE` with `hidden`, `latent` and `variance`, and learns at `memory_lr`. The
    solver in a slot learns at `lr`.
    """

    name = "dgdmn"
    slots: nn.ModuleList
    slot_state: list[Tensor]
    learnt: int  # finished tasks

    def __init__(
        self,
        network: Network,
        *,
        slots: Positive = 5,
        samples: Positive = 2000,
        sleep: Positive = 10,
        memory_lr: Rate = 1e-3,
        **options: Any,
    ) -> None:
        super().__init__(network, **options)
        self.samples, self.sleep, self.memory_lr = samples, sleep, memory_lr
        self.long_term = Memory(self.generator, network)
        self.keep("slots", nn.ModuleList(deepcopy(self.long_term) for _ in range(slots)))
        self.keep("slot_state", [], counted=False)
        self.keep("learnt", 0)
        self.keep("training", False)  # whether a slot is being trained

    @property
    def consolidated(self) -> int:
        """The number of tasks in the long-term memory."""
        return self.learnt // len(self.slots) * len(self.slots)

    def memory_of(self, task: int) -> Memory:
        """The slot of a task."""
        memory = self.slots[task % len(self.slots)]
        assert isinstance(memory, Memory)
        return memory

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters of the solver in the task's slot, without the heads of other tasks."""
        solver = self.memory_of(self.task).solver
        return trainable(solver, *(set(solver.heads) - {solver.head_of(self.task)} if solver.multi_head else ()))

    def start(self, task: int) -> None:
        self.training = True
        memory = self.memory_of(task)
        for module in memory.modules():
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()
        self.optimizer = adam()(list(memory.generator.parameters()), self.lr.new_tensor(self.memory_lr))
        self.slot_state = initial_state(self.optimizer)
        super().start(task)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        memory = self.memory_of(self.task).train()
        loss = F.cross_entropy(memory.solver(x, self.task), y)
        self.apply_gradients(self.gradients(loss))
        step_with(self.optimizer, memory.generator.loss(x))
        return loss.detach()

    def finish(self, task: int, train: Split) -> None:
        self.training = False
        if (task + 1) % len(self.slots) == 0:
            self.consolidate(*self.replay())
        self.learnt = task + 1

    @torch.no_grad()
    def replay(self) -> tuple[Tensor, Tensor]:
        """Returns `samples` generated inputs for every task so far, and their labels, numbered through all heads."""
        inputs, labels = [], []
        if old := self.consolidated:
            inputs.append(self.generator.sample(old * self.samples))
            labels.append(best_class(self.network.eval(), inputs[0], old))
        for task in range(old, old + len(self.slots)):
            memory = self.memory_of(task).eval()
            inputs.append(memory.generator.sample(self.samples))
            labels.append(self.mixed.labels(memory.solver(inputs[-1], task).argmax(1), task))
        return torch.cat(inputs), torch.cat(labels)

    def consolidate(self, x: Tensor, labels: Tensor) -> None:
        """Sleep: trains the long-term memory on the replayed examples."""
        optimizer = adam()([*self.generator.parameters(), *super().parameters], self.lr.new_tensor(self.memory_lr))
        initial_state(optimizer)
        self.network.train()
        for _ in range(self.sleep):
            for part in torch.randperm(len(x), device=self.device).split(SLEEP_BATCH):
                step_with(optimizer, self.generator.loss(x[part]) + self.mixed_loss(x[part], labels[part]))

    logits_recordable = True

    def logits(self, x: Tensor, task: int) -> Tensor:
        in_slots = range(self.consolidated, self.learnt + self.training)
        if self.network.multi_head:
            memories = [self.memory_of(task) if task in in_slots else self.long_term]
        else:
            memories = [self.memory_of(each) for each in in_slots] + [self.long_term] * (self.consolidated > 0)
        answers = torch.stack([memory.eval().solver(x, task) for memory in memories])
        nearest = torch.stack([memory.distance(x) for memory in memories]).argmin(0)
        return answers[nearest, torch.arange(len(x), device=self.device)]
