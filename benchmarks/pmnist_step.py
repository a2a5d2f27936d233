"""A step of permuted MNIST on one core (thread time), with the first task remembered: ours against the plain way.

    python benchmarks/pmnist_step.py

Ours is written out by hand and projects the task's inputs once; that cost is spread over the task's steps and counted in.
"""

from __future__ import annotations

from setting import CPU, Setting
from timing import fastest_stretch, machine, own

from remnant.accelerated.manual_backward import STEPS_TOGETHER, ManualBackwardSteps
from remnant.training.trainer import STEPS_PER_TURN, EagerSteps

ROUNDS = 5


def main() -> None:
    setting = Setting("pmnist", CPU)
    first, second = setting.task(0), setting.task(1)
    ours, plain = setting.method(), setting.reference()
    for _ in ManualBackwardSteps(ours, first.train, setting.batch).epoch():
        pass
    plain.network.load_state_dict(ours.network.state_dict())
    ours.finish(0, first.train)
    plain.finish(first.train.x)
    ours.start(1)

    before = own()
    steps = ManualBackwardSteps(ours, second.train, setting.batch)
    once = (own() - before) / (steps.count * setting.settings.training["epochs"])
    eager = EagerSteps(ours, second.train, setting.batch)
    taken, by_autograd, reference = [], [], []
    for _ in range(ROUNDS):  # in turns, so that a busy machine slows all alike
        taken.append(fastest_stretch(steps.epoch()) / STEPS_TOGETHER)
        by_autograd.append(fastest_stretch(eager.epoch(), 2) / STEPS_PER_TURN)
        reference.append(fastest_stretch(plain.epoch(second.train.x, second.train.y, setting.batch), 400))
    ours_µs, autograd_µs, plain_µs = (1e6 * min(times) for times in (taken, by_autograd, reference))
    once *= 1e6
    print(machine())
    print("A step of permuted MNIST (batch 10, 784-100-100-10) in the second task, one core; fastest stretch, µs")
    print(f"  the plain way                  {plain_µs:8.0f}")
    print(f"  ours through autograd          {autograd_µs:8.0f}")
    print(f"  ours by hand                   {ours_µs:8.0f}")
    print(f"  … with inputs projected once   {ours_µs + once:8.0f}")
    print(f"ratio {plain_µs / (ours_µs + once):.1f}")


if __name__ == "__main__":
    main()
