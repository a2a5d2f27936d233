"""What every network does: heads, shapes, normalisation, seeds, and a forward pass that can be captured."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from remnant.accelerated import fuse_activations
from remnant.models import MLP, MODELS, LeNet, Network, ReluDropout, ResponseNorm, build
from remnant.options import OptionError
from remnant.registry import UnknownNameError

SMALL = {"mlp": {"hidden": [7, 5]}, "alexnet": {"width": 4}, "lenet": {"width": 4}, "resnet18": {"width": 2}}
NORMALISING = ["alexnet", "resnet18"]
VARIANTS = [
    ("mlp", {}),
    ("lenet", {}),
    *((name, {"norm": norm}) for name in NORMALISING for norm in ("running", "batch")),
]


def small(name: str, classes=(3, 4, 2), seed: int | None = 0, **options) -> Network:
    options = {"input_shape": (3, 32, 32), **SMALL[name], **options}
    return build(name, classes=classes, seed=seed, **options)


def images(count: int, *shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(count, *(shape or (3, 32, 32)), generator=torch.Generator().manual_seed(seed))


# Heads


@pytest.mark.parametrize("name", MODELS)
def test_each_task_has_the_logits_of_its_own_head(name):
    network, x = small(name).eval(), images(5)
    features = network.features(x)
    for task, classes in enumerate((3, 4, 2)):
        logits = network(x, task)
        assert logits.shape == (5, classes)
        torch.testing.assert_close(logits, features @ network.heads[task].weight.T)


@pytest.mark.parametrize("name", MODELS)
def test_training_one_task_leaves_the_other_heads_alone(name):
    network = small(name)
    network(images(4), 1).sum().backward()
    touched = {n for n, parameter in network.named_parameters() if parameter.grad is not None}
    assert "heads.1.weight" in touched
    assert not touched & {"heads.0.weight", "heads.2.weight"}
    body = {n for n, _ in network.named_parameters() if not n.startswith("heads.")}
    assert body <= touched


@pytest.mark.parametrize("name", MODELS)
def test_a_single_head_ignores_the_task(name):
    network, x = small(name, classes=6).eval(), images(3)
    assert network(x).shape == (3, 6)
    torch.testing.assert_close(network(x), network(x, 17), rtol=0, atol=0)
    assert "head.weight" in dict(network.named_parameters())
    assert not network.multi_head


def test_a_stream_of_one_task_may_have_its_own_head():
    network = small("mlp", classes=[4])
    assert network.multi_head
    assert network(images(2), 0).shape == (2, 4)


def test_a_network_with_one_head_needs_no_task():
    network = MLP((4,), (3,))
    x = torch.randn(5, 4)
    assert torch.equal(network(x), network(x, 0))


def test_a_network_that_attaches_no_head_says_what_to_call(tmp_path):
    (tmp_path / "bare.py").write_text(
        "from remnant.models import Network\nclass Bare(Network):\n    def features(self, x):\n        return x\n"
    )
    for classes in (3, [3, 3]):
        with pytest.raises(
            OptionError, match=r"Bare has no head\. Call self\.attach_heads\(features, bias=…\) at the end"
        ):
            build(f"{tmp_path / 'bare.py'}:Bare", input_shape=(4,), classes=classes)


def test_a_network_with_heads_needs_the_task():
    with pytest.raises(ValueError, match=r"3 heads: name the task"):
        small("mlp")(images(2))


@pytest.mark.parametrize("task", [3, -1])
def test_a_task_without_a_head_is_refused(task):
    with pytest.raises(IndexError, match=rf"No head for task {task}.*0 to 2"):
        small("mlp")(images(2), task)


# Shapes


@pytest.mark.parametrize(
    ("name", "smallest"), [("alexnet", 19), ("lenet", 1), ("resnet18", 9)], ids=["alexnet", "lenet", "resnet18"]
)
def test_the_smallest_image_works_and_the_next_smaller_one_is_refused(name, smallest):
    assert small(name, input_shape=(1, smallest, smallest)).eval()(images(2, 1, smallest, smallest), 0).shape == (2, 3)
    if smallest > 1:
        with pytest.raises(
            ValueError, match=rf"{smallest - 1}×{smallest - 1}.*smallest square it takes is {smallest}×"
        ):
            small(name, input_shape=(1, smallest - 1, smallest - 1))


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(["alexnet", "lenet", "resnet18"]), st.integers(1, 4), st.integers(19, 45), st.integers(19, 45))
def test_the_size_before_the_last_layers_is_computed_for_any_image(name, channels, height, width):
    network = small(name, input_shape=(channels, height, width)).eval()
    assert network(images(2, channels, height, width), 2).shape == (2, 2)


@pytest.mark.parametrize("name", ["alexnet", "lenet", "resnet18"])
def test_a_network_for_images_refuses_other_shapes(name):
    with pytest.raises(ValueError, match=r"\(channels, height, width\), not \(784,\)"):
        small(name, input_shape=(784,))


def test_mlp_takes_inputs_of_any_shape():
    for shape in [(12,), (3, 4), (3, 2, 2)]:
        assert small("mlp", input_shape=shape)(images(2, *shape), 0).shape == (2, 3)


def test_mlp_without_hidden_layers_is_linear():
    network, x = MLP((6,), 3, hidden=()), images(4, 6)
    torch.testing.assert_close(network(x), x @ network.head.weight.T)


@pytest.mark.parametrize("name", MODELS)
def test_inputs_of_another_shape_than_built_for_are_refused(name):
    with pytest.raises(ValueError, match=r"\(2, 3, 28, 28\).*\(3, 32, 32\)"):
        small(name)(images(2, 3, 28, 28), 0)


@pytest.mark.parametrize("shape", [(), (0,), (3, -1, 4)])
def test_impossible_input_shapes_are_refused(shape):
    with pytest.raises(ValueError, match="input_shape"):
        MLP(shape, 3)


@pytest.mark.parametrize("classes", [0, [], [3, 0]])
def test_heads_without_classes_are_refused(classes):
    with pytest.raises(ValueError, match="classes"):
        MLP((4,), classes)


@pytest.mark.parametrize("name", MODELS)
def test_example_is_one_input_as_the_network_takes_it(name):
    network = small(name).double().eval()
    assert network.example.shape == network.input_shape == (3, 32, 32)
    assert network.example.dtype == torch.float64
    assert network(network.example.expand(2, 3, 32, 32), 0).shape == (2, 3)


# Normalisation


def test_an_alexnet_has_the_same_outputs_in_training_once_its_running_statistics_are_those_of_the_batch():
    """Dropout would change them: it adds variance in training, which the statistics keep for the test."""
    network, x = small("alexnet", norm="running"), images(64)
    for norm in (module for module in network.modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)):
        norm.momentum = 1.0
    with torch.no_grad():
        trained = network.train().features(x)
        tested = network.eval().features(x)
    torch.testing.assert_close(tested, trained, rtol=0.1, atol=0.1)  # the stored variance is the unbiased one


def test_an_alexnet_with_running_statistics_drops_values_if_asked_to():
    network = small("alexnet", norm="running", dropout=[0.1, 0.3])
    assert [module.rate for module in network.modules() if isinstance(module, ReluDropout)] == [0.1, 0.1, 0.3, 0.3, 0.3]


@pytest.mark.parametrize("name", NORMALISING)
def test_running_norm_scores_an_example_by_itself(name):
    network, x = small(name, norm="running"), images(8)
    network(x, 0)
    network.eval()
    torch.testing.assert_close(network(x, 0)[:1], network(x[:1], 0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NORMALISING)
def test_batch_norm_scores_an_example_by_the_batch_it_is_in_and_keeps_nothing(name):
    network, x = small(name, norm="batch").eval(), images(8)
    assert not list(network.buffers())
    assert not torch.allclose(network(x, 0)[:2], network(x[:2], 0), rtol=1e-2, atol=1e-3)
    inputs = []
    first = next(m for m in network.modules() if isinstance(m, nn.BatchNorm2d))
    first.register_forward_hook(lambda _module, _input, output: inputs.append(output))
    network(5 * x + 3, 0)
    torch.testing.assert_close(inputs[0].mean((0, 2, 3)), torch.zeros(first.num_features), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", NORMALISING)
def test_an_unknown_norm_is_refused(name):
    with pytest.raises(OptionError, match=r"norm='bach': norm takes 'running' .* or 'batch'"):
        small(name, norm="bach")
    with pytest.raises(OptionError, match=r"takes 'running' \(also if the memory is to freeze"):
        MODELS[name]((3, 32, 32), 2, norm="frozen")  # without `build`, too


def test_lenet_normalises_each_value_by_its_four_channel_neighbours():
    network, x = small("lenet"), 200 * images(1, 6, 1, 1)  # large enough for α = 0.001/9 to matter
    expected = x.clone()
    for channel in range(6):
        near = x[0, max(0, channel - 2) : channel + 2, 0, 0]
        expected[0, channel] /= (1 + 0.001 / 9 * near.square().sum() / 4) ** 0.75
    torch.testing.assert_close(network.response_norm(x), expected)


@pytest.mark.parametrize("size", [3, 4, 5])
def test_response_norm_is_torchs(size):
    x, weights = (30 * images(2, 7, 5, 4)).requires_grad_(), images(2, 7, 5, 4)
    ours, theirs = ResponseNorm(size, alpha=0.01)(x), nn.LocalResponseNorm(size, alpha=0.01, beta=0.75, k=1)(x)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad((y * weights).sum(), x)[0] for y in (ours, theirs)))


def test_gradients_of_gradients_and_of_single_examples_pass_response_norm():
    norm = ResponseNorm(4, alpha=0.5)  # large, so that d matters
    x = images(2, 5, 3, 2).double().requires_grad_()
    assert torch.autograd.gradcheck(norm, x)
    assert torch.autograd.gradgradcheck(norm, x)
    by_example = torch.func.vmap(torch.func.grad(lambda each: norm(each[None]).square().sum()))(x)
    torch.testing.assert_close(by_example, torch.autograd.grad(norm(x).square().sum(), x)[0])


# Initial weights


@pytest.mark.parametrize("name", MODELS)
def test_a_seed_fixes_the_weights_and_leaves_torchs_generator_alone(name):
    before = torch.get_rng_state()
    one, again, other = small(name, seed=3), small(name, seed=3), small(name, seed=4)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), again.state_dict().values(), strict=True))
    assert not torch.equal(one.heads[0].weight, other.heads[0].weight)


def test_without_a_seed_torchs_generator_decides():
    torch.manual_seed(5)
    one = small("mlp", seed=None)
    torch.manual_seed(5)
    again = small("mlp", seed=None)
    assert torch.equal(one.heads[0].weight, again.heads[0].weight)


@pytest.mark.parametrize("init", ["kaiming_uniform", "pytorch"])
def test_lenets_initial_weights_fill_their_range(init):
    network = small("lenet", width=20, init=init)
    gain = 2**0.5 if init == "kaiming_uniform" else (1 / 3) ** 0.5  # PyTorch's own: uniform within 1/√fan_in
    for layer in (m for m in network.modules() if isinstance(m, nn.Linear | nn.Conv2d)):
        bound = gain * (3 / layer.weight[0].numel()) ** 0.5
        assert 0.97 * bound < layer.weight.abs().max() <= bound


def test_an_unknown_init_is_refused():
    with pytest.raises(OptionError, match="init takes 'kaiming_uniform' or 'pytorch'"):
        small("lenet", init="kaiming")
    with pytest.raises(OptionError, match="init takes"):
        LeNet((3, 32, 32), 2, init="kaiming")


# By name


def test_an_unknown_network_gets_the_nearest_name():
    with pytest.raises(UnknownNameError, match=r"No network called 'alexnt'. Did you mean 'alexnet'\?"):
        build("alexnt", input_shape=(3, 32, 32), classes=10)


def test_an_unknown_option_gets_the_nearest_name():
    with pytest.raises(OptionError, match=r"no such option of resnet18. Did you mean 'stem_stride'\?"):
        build("resnet18", input_shape=(3, 32, 32), classes=10, stem_strid=2)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("mlp", "hidden", [100, 0]),
        ("alexnet", "width", 0),
        ("alexnet", "dropout", [0.2, 1.0]),
        ("alexnet", "dropout", [0.2]),
        ("lenet", "width", 10_001),
        ("resnet18", "stem_stride", 9),
        ("resnet18", "bias", 1),
    ],
)
def test_a_value_that_an_option_does_not_take_is_refused(name, option, value):
    with pytest.raises(OptionError, match=rf"{option}(\[\d\])? takes"):
        build(name, input_shape=(3, 32, 32), classes=10, **{option: value})


OWN = """
from typing import Annotated
from torch import nn
from remnant.models import Network
from remnant.options import whole

class Net(Network):
    def __init__(self, input_shape, classes, *, width: Annotated[int, whole(1, 9)] = 3):
        super().__init__(input_shape, classes)
        self.body = nn.Linear(input_shape[0], width)
        self.attach_heads(width, bias=True)

    def features(self, x):
        return self.body(x).relu()

def plain(input_shape, classes):
    return nn.Linear(input_shape[0], classes)
"""


def test_a_network_of_the_users_own_is_built_from_its_file(tmp_path):
    (tmp_path / "my_net.py").write_text(OWN)
    where = f"{tmp_path / 'my_net.py'}:Net"
    one, again = (build(where, input_shape=(4,), classes=[2, 5], seed=1, width=7) for _ in range(2))
    assert one.body.out_features == 7
    assert one(images(3, 4), 1).shape == (3, 5)
    assert torch.equal(one.body.weight, again.body.weight)
    with pytest.raises(OptionError, match="width takes a whole number from 1 to 9"):
        build(where, input_shape=(4,), classes=2, width=10)
    with pytest.raises(OptionError, match="made a Linear, which is not a subclass of"):
        build(f"{tmp_path / 'my_net.py'}:plain", input_shape=(4,), classes=2)


# Capture


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_a_step_never_reads_a_value_on_the_host(name, options):
    # Fake tensors have shapes but no values, so `.item()` and `if tensor:` raise, as they do during a capture.
    with FakeTensorMode():
        network = small(name, seed=None, **options).train()
        x = torch.empty(4, 3, 32, 32)
        network(x, 0).sum().backward()
        network.eval()(x, 1)


def test_fake_tensors_would_catch_a_branch_on_a_value():
    with FakeTensorMode(), pytest.raises(DataDependentOutputException):
        bool(torch.empty(3).sum() > 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_a_step_can_be_captured(name, options, fused):
    network = small(name, **options).cuda().train()
    if fused:
        fuse_activations(network)
    x = images(8).cuda()

    def step() -> torch.Tensor:
        loss = network(x, 0).square().sum()
        loss.backward()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    network.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    graph.replay()
    assert loss.isfinite()
    assert network.heads[0].weight.grad.abs().sum() > 0
