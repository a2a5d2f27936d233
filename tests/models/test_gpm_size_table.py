"""The paper's table of GPM sizes (appendix, "GPM Size"), read off the modules."""

import pytest
from torch import nn

from remnant.experiments.settings import resolve
from remnant.models import Network, ReluDropout, build

TABLE = {
    "mlp": ([784, 100, 100], 0.63),
    "alexnet": ([48, 576, 512, 1024, 2048], 5.84),
    "resnet18": (
        [27, 180, 180, 180, 180, 180, 360, 20, 360, 360, 360, 720, 40, 720, 720, 720, 1440, 80, 1440, 1440],
        8.98,
    ),
}
SETTINGS = {
    "mlp": {"input_shape": (1, 28, 28), "classes": 10},
    "alexnet": {"input_shape": (3, 32, 32), "classes": [10] * 10},
    "lenet": {"input_shape": (3, 32, 32), "classes": [5] * 20},
    "resnet18": {"input_shape": (3, 32, 32), "classes": [10] * 5},
}


def paper_network(name: str) -> Network:
    return build(name, seed=0, **SETTINGS[name])


def input_dimensions(network: Network) -> list[int]:
    """What one row of each protected layer's input holds: all layers but the heads per task, in the order they run."""
    dimensions = []
    for name, layer in network.named_modules():
        if name.startswith("heads."):
            continue
        if isinstance(layer, nn.Linear):
            dimensions.append(layer.in_features)
        elif isinstance(layer, nn.Conv2d):
            dimensions.append(layer.in_channels * layer.kernel_size[0] * layer.kernel_size[1])
    return dimensions


@pytest.mark.parametrize("name", TABLE)
def test_each_protected_layer_has_the_papers_input_dimension(name):
    assert input_dimensions(paper_network(name)) == TABLE[name][0]


@pytest.mark.parametrize("name", TABLE)
def test_gpm_max_is_the_papers(name):
    parameters = sum(n * n for n in input_dimensions(paper_network(name)))
    assert round(parameters / 1e6, 2) == TABLE[name][1]


@pytest.mark.parametrize("method", ["gem", "agem", "er"])
@pytest.mark.parametrize(
    ("benchmark", "pixels"),
    [
        ("pmnist", 28 * 28),
        ("split-cifar100", 3 * 32**2),
        ("split-miniimagenet", 3 * 84**2),
        ("five-datasets", 3 * 32**2),
    ],
)
def test_replay_keeps_examples_of_about_the_same_size(benchmark, pixels, method):
    settings = resolve(benchmark, method)
    gpm_max = 1e6 * TABLE[settings.network["name"]][1]
    assert 1 <= settings.options["memory"] * pixels / gpm_max < 1.3


def test_miniimagenets_resnet_protects_the_same_dimensions():
    network = build("resnet18", input_shape=(3, 84, 84), classes=[5] * 20, stem_stride=2)
    assert input_dimensions(network) == TABLE["resnet18"][0]


def test_lenet_has_20_50_800_500_neurons():
    network = paper_network("lenet")
    assert input_dimensions(network) == [3 * 25, 20 * 25, 3200, 800]
    assert [network.conv1.out_channels, network.conv2.out_channels] == [20, 50]
    assert [network.fc1.out_features, network.fc2.out_features] == [800, 500]


def test_resnet_has_17_convolutions_and_3_shortcuts():
    convolutions = [name for name, m in paper_network("resnet18").named_modules() if isinstance(m, nn.Conv2d)]
    shortcuts = [name for name in convolutions if "shortcut" in name]
    assert shortcuts == ["stage2.0.shortcut.conv", "stage3.0.shortcut.conv", "stage4.0.shortcut.conv"]
    assert len(convolutions) - len(shortcuts) == 17


@pytest.mark.parametrize(
    ("settings", "features"),
    [({"input_shape": (3, 32, 32)}, 640), ({"input_shape": (3, 84, 84), "stem_stride": 2}, 1440)],
    ids=["5-datasets", "miniimagenet"],
)
def test_resnet_head_input(settings, features):
    assert build("resnet18", classes=[5], **settings).heads[0].in_features == features


@pytest.mark.parametrize("name", SETTINGS)
def test_no_bias_units(name):
    network = paper_network(name)
    layers = [m for m in network.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    assert layers
    assert all(layer.bias is None for layer in layers)


@pytest.mark.parametrize("name", SETTINGS)
def test_bias_units_in_every_layer_if_asked_for(name):
    network = build(name, bias=True, **SETTINGS[name])
    assert all(m.bias is not None for m in network.modules() if isinstance(m, nn.Linear | nn.Conv2d))


def test_alexnets_dropout_is_a_fifth_in_the_first_two_layers_and_half_in_the_rest():
    network = build("alexnet", norm="batch", **SETTINGS["alexnet"]).train()
    rates: list[float] = []
    for dropout in (m for m in network.modules() if isinstance(m, ReluDropout)):
        dropout.register_forward_hook(lambda module, *_: rates.append(module.rate))
    network(network.example.expand(2, -1, -1, -1), 0)
    assert rates == [0.2, 0.2, 0.5, 0.5, 0.5]
