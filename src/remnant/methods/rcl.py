"""Reinforced continual learning, RCL (Xu and Zhu, 2018): a controller learns how many units each task adds to each layer."""

from typing import Annotated, Any

import torch
from torch import Tensor, nn

from remnant.data import Split
from remnant.models import Network
from remnant.options import Positive, each_layer, number, whole

from .optimizers import initial_state
from .parts.widening import Widening, by_layer

HIDDEN = 100  # of each of the controller's two LSTM layers
CONTROLLER_LR, VALUE_LR = 1e-3, 5e-3
EVALUATION_BATCH = 1000


class RCL(Widening):
    """Tries several numbers of new units per task, and keeps those with the highest reward R.

    A task's epochs are divided into `trials`. In each, the controller, an LSTM, draws how many units every layer gains, 0 to
    `most` (29). Only weights to and from new units and the head are trained, so nothing is forgotten. The reward is
    R = validation accuracy − `price`·(new units). The controller takes a step along (R − V)·∇log P(numbers), where V, a linear
    function of its state, learns to predict R. Epochs left over continue the best trial. The first task adds no units.
    """

    name = "rcl"
    has_phases = True
    choices: Tensor  # new units of each layer in this trial
    controller: "Controller"
    best: list[Tensor]  # the best trial's weights
    best_reward: Tensor

    def __init__(
        self,
        network: Network,
        *,
        trials: Positive = 5,
        most: Annotated[dict[str, int] | None, each_layer(whole(0, 10_000))] = None,
        price: Annotated[float, number(0, 1)] = 1e-4,
        **options: Any,
    ) -> None:
        most, later_tasks = most or {"*": 29}, len(network.classes) - 1
        super().__init__(network, {layer: count * later_tasks for layer, count in most.items()}, **options)
        self.trials, self.price = trials, price
        self.valid: Split | None = None
        sizes = [by_layer(most, layer) for layer in self.units.layers]
        with torch.device(self.device):  # on a GPU, only its own generator belongs to this run
            self.keep("controller", Controller(sizes).to(network.example), per_step=False)
        value = list(self.controller.value.parameters())
        policy = [p for p in self.controller.parameters() if p not in set(value)]
        self.optimizers = [torch.optim.Adam(policy, CONTROLLER_LR), torch.optim.Adam(value, VALUE_LR)]
        self.keep("controller_state", [initial_state(each) for each in self.optimizers], per_step=False)
        self.keep("choices", torch.zeros(len(sizes), dtype=torch.int64, device=self.device), per_step=False)
        self.keep("best", [], per_step=False)
        self.keep("best_reward", network.example.new_zeros(()), per_step=False)
        self.trial_ends = False

    def validation(self, task: int, valid: Split) -> dict[int, Split]:
        self.valid = valid
        return super().validation(task, valid)

    def start(self, task: int) -> None:
        super().start(task)
        self.best = [tensor.clone() for tensor in self._result()]
        self.best_reward.fill_(-torch.inf)
        self.free_entries(self.units.seen[task], but=self.units.seen[task] if task > 0 else None)

    def _result(self) -> list[Tensor]:
        """Returns the result of a trial: the weights, and the units that the task sees."""
        weights = [p.detach() for p in self.units.parameters_for(self.task).values()]
        return [*weights, self.units.seen[self.task]]

    def on_epoch_start(self, epoch: int, epochs: int, steps: int) -> None:
        length = max(1, epochs // self.trials)
        trial, epoch_of_trial = divmod(epoch, length)
        tries = self.task > 0 and trial < self.trials
        self.trial_ends, self.is_last = tries and epoch_of_trial == length - 1, trial == self.trials - 1
        if tries and epoch_of_trial == 0:
            self.begin_trial()

    @torch.no_grad()
    def begin_trial(self) -> None:
        """Draws new units, and new weights for them and for the head."""
        self.choices.copy_(self.controller()[0])
        before = self.units.seen[self.task - 1]
        after = [
            torch.arange(len(seen), device=self.device) < seen.sum() + new
            for seen, new in zip(self.units.of_layers(before), self.choices, strict=True)
        ]
        self.units.seen[self.task] = torch.cat(after)
        self.free_entries(self.units.seen[self.task], but=before)
        for p, free in zip(self.units.body.values(), self.free, strict=True):
            p.copy_(torch.where(free > 0, self._drawn(p), p))
        for p in self.units.heads[self.task].values():
            p.copy_(self._drawn(p))
        if self.optimizer_state:
            torch._foreach_zero_(self.optimizer_state)

    def _drawn(self, p: nn.Parameter) -> Tensor:
        spread = self.units.spread[p]
        return torch.empty_like(p).uniform_(-spread, spread)

    def on_epoch_end(self) -> None:
        if not self.trial_ends:
            return
        reward = self._accuracy() - self.price * self.choices.sum()
        self._teach_controller(reward)
        if reward > self.best_reward:
            self.best_reward.copy_(reward)
            torch._foreach_copy_(self.best, self._result())
        if self.is_last:
            torch._foreach_copy_(self._result(), self.best)

    @torch.no_grad()
    def _accuracy(self) -> Tensor:
        """The share of right answers on the validation set; 0 if there is none."""
        right = self.best_reward.new_zeros(())
        if self.valid is None or not len(self.valid):
            return right
        self.network.eval()
        for x, y in zip(self.valid.x.split(EVALUATION_BATCH), self.valid.y.split(EVALUATION_BATCH), strict=True):
            right += (self.logits(x, self.task).argmax(1) == y).sum()
        return right / len(self.valid)

    def _teach_controller(self, reward: Tensor) -> None:
        _, log_probability, value = self.controller(self.choices)
        loss = -log_probability * (reward - value.detach()) + (reward - value).square()
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()


class Controller(nn.Module):
    """Draws a number for one layer after the other. Each depends on the numbers of the layers before it.

    Args:
        most: the largest number for each layer.
    """

    def __init__(self, most: list[int]) -> None:
        super().__init__()
        self.lstm = nn.LSTM(HIDDEN, HIDDEN, num_layers=2)
        self.embedding = nn.Embedding(max(most) + 1, HIDDEN)
        self.scores = nn.ModuleList(nn.Linear(HIDDEN, each + 1) for each in most)
        self.value = nn.Linear(HIDDEN, 1)

    def forward(self, choices: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Returns numbers, drawn unless they are given, with the logarithm of their probability and the expected reward."""
        x, state = self.value.weight.new_zeros(1, HIDDEN), None
        drawn: list[Tensor] = []
        total = x.new_zeros(())
        for layer, scores in enumerate(self.scores):
            h, state = self.lstm(x, state)
            log_probabilities = scores(h)[0].log_softmax(0)
            choice = log_probabilities.exp().multinomial(1)[0] if choices is None else choices[layer]
            total = total + log_probabilities[choice]
            x = self.embedding(choice)[None]
            drawn.append(choice)
        return torch.stack(drawn), total, self.value(h.detach())[0, 0]
