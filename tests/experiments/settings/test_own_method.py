"""Methods, networks and streams of the user's own: from files, as Python objects and as entry points."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from torch import Tensor

from remnant.data import Stream
from remnant.experiments.settings import describe, recipe, resolve
from remnant.methods import METHODS, Method
from remnant.models import Network
from remnant.options import OptionError, whole

METHOD = '''
from typing import Any
from remnant.methods import Method

class Pull(Method):
    """Pulls weights back."""
    name = "pull"

    def __init__(self, network, *, strength: float = 0.3, every: int = 2, needed: float, **options: Any) -> None:
        super().__init__(network, **options)

class NoRate(Method):
    def __init__(self, network, *, rate: float = 0.1) -> None:
        super().__init__(network, lr=rate)
'''
NETWORK = """
from remnant.models import MLP

class Deep(MLP):
    def __init__(self, input_shape, classes, *, depth: int = 3) -> None:
        super().__init__(input_shape, classes, hidden=[10] * depth)

class Other: ...
"""
STREAM = """
from remnant.data import load_stream

def make(seed, tasks: int = 2, *, scale: float = 1.0):
    return load_stream("permuted-digits", seed=seed, tasks=tasks)

def open_to_all(seed, **options):
    return load_stream("permuted-digits", seed=seed, tasks=2)
"""


class Own(Method):
    name = "own"

    def __init__(self, network: Network, *, strength: float = 0.5, **options: Any) -> None:
        super().__init__(network, **options)
        self.strength = strength


class OwnNetwork(Network):
    def __init__(self, input_shape: Any, classes: Any, *, units: int = 3) -> None: ...

    def features(self, x: Tensor) -> Tensor: ...  # type: ignore[empty-body]


def own_stream(seed: int, *, depth: Annotated[int, whole(1, 9)] = 2) -> Stream: ...  # type: ignore[empty-body]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, content in (("my_method.py", METHOD), ("my_net.py", NETWORK), ("my_stream.py", STREAM)):
        (tmp_path / name).write_text(content)
    return tmp_path


def test_a_method_from_a_file_takes_the_defaults_of_its_signature(files: Path) -> None:
    settings = resolve("permuted-digits", "my_method.py:Pull", ["needed=1", "strength=2"])
    assert settings.method == "my_method.py:Pull"
    assert settings.options == {"strength": 2.0, "every": 2, "needed": 1.0, "lr": 0.01, "anneal": False}
    assert settings.network == resolve("permuted-digits", "gpm").network
    with pytest.raises(OptionError, match=r"every takes a whole number"):
        resolve("permuted-digits", "my_method.py:Pull", ["needed=1", "every=2.5"])
    with pytest.raises(OptionError, match=r"no such setting of my_method.py:Pull. Did you mean 'strength'\?"):
        resolve("permuted-digits", "my_method.py:Pull", ["strengt=2"])


def test_an_option_without_a_default_must_be_set(files: Path) -> None:
    with pytest.raises(
        OptionError, match=r"my_method.py:Pull needs a value for needed.* Add --set needed=… \(a number"
    ):
        resolve("permuted-digits", "my_method.py:Pull")


def test_every_method_takes_a_learning_rate(files: Path) -> None:
    with pytest.raises(OptionError, match=r"my_method.py:NoRate has no option lr, which every method takes"):
        resolve("permuted-digits", "my_method.py:NoRate")


def test_the_settings_of_a_method_from_a_file_can_be_listed(files: Path) -> None:
    listed = {setting.key: setting for setting in describe("permuted-digits", "my_method.py:Pull")}
    assert listed["strength"][1:] == ("0.3", "a number", "default of my_method.py:Pull")
    assert listed["needed"].value == "required"
    assert listed["training.epochs"].source == "permuted-digits.toml"


def test_a_network_from_a_file(files: Path) -> None:
    overrides = ["network.name=my_net.py:Deep", "network.depth=2"]
    assert resolve("pmnist", "gpm", overrides).network == {"name": "my_net.py:Deep", "depth": 2}
    assert resolve("pmnist", "gpm", [f"network={files}/my_net.py:Deep"]).network == {"name": f"{files}/my_net.py:Deep"}
    with pytest.raises(OptionError, match=r"no such setting of my_net.py:Deep. Did you mean 'network.depth'\?"):
        resolve("pmnist", "gpm", ["network.name=my_net.py:Deep", "network.deph=2"])
    with pytest.raises(OptionError, match=r"my_net.py:Dep: my_net.py has no 'Dep'. Did you mean 'Deep'\?"):
        resolve("pmnist", "gpm", ["network.name=my_net.py:Dep"])
    with pytest.raises(OptionError, match=r"my_net.py:Other is not a subclass .* `from remnant.models import Network`"):
        resolve("pmnist", "gpm", ["network.name=my_net.py:Other"])


def test_a_stream_from_a_file_takes_the_options_of_its_function(files: Path) -> None:
    settings = resolve("my_stream.py:make", "gpm", ["stream.tasks=3", "network.name=lenet", "lr=0.2"])
    assert settings.stream == {"tasks": 3}
    assert (settings.network, settings.options["lr"]) == ({"name": "lenet"}, 0.2)
    assert settings.options["rank_rule"] == "paper"  # from default.toml
    for override, says in (
        ("tasks=many", "stream.tasks takes a whole number"),
        ("task=3", "Did you mean 'stream.tasks'"),
    ):
        with pytest.raises(OptionError, match=says):
            resolve("my_stream.py:make", "gpm", [f"stream.{override}"])
    assert "stream.scale" in {setting.key for setting in describe("my_stream.py:make", "gpm")}


def test_a_stream_that_takes_any_option(files: Path) -> None:
    assert resolve("my_stream.py:open_to_all", "gpm", ["stream.depth=[1, 2]"]).stream == {"depth": [1, 2]}
    with pytest.raises(OptionError, match=r"stream\.since takes a number, a word"):
        resolve("my_stream.py:open_to_all", "gpm", ["stream.since=2021-05-03"])


def test_a_stream_s_file_runs_only_for_its_options() -> None:
    """Reports resolve the settings of old runs, whose files may be gone."""
    assert resolve("nowhere.py:stream", "gpm").network["name"] == "mlp"
    with pytest.raises(OptionError, match=r"There is no file nowhere.py"):
        resolve("nowhere.py:stream", "gpm", ["stream.tasks=3"])


def test_methods_and_streams_as_python_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    settings = resolve("permuted-digits", Own, ["strength=1"])
    assert settings.method == f"{Path(__file__).name}:Own"
    assert settings.options == {"strength": 1.0, "lr": 0.01, "anneal": False}
    assert METHODS[settings.method] is Own
    assert resolve("permuted-digits", METHODS["gpm"]) == resolve("permuted-digits", "gpm")
    assert resolve(own_stream, "gpm", ["stream.depth=3"]).stream == {"depth": 3}
    with pytest.raises(OptionError, match=r"stream.depth takes a whole number from 1 to 9"):
        resolve(own_stream, "gpm", ["stream.depth=30"])
    assert resolve("pmnist", "gpm", ["network.units=9"], network=OwnNetwork).network["name"].endswith(":OwnNetwork")


def test_entry_points_are_methods_streams_and_networks_like_the_built_in(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (files / "plug-1.0.dist-info").mkdir()
    (files / "plug-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1.0\n")
    (files / "plug-1.0.dist-info" / "entry_points.txt").write_text(
        "[remnant.methods]\npull = my_method:Pull\n[remnant.networks]\ndeep = my_net:Deep\n"
        "[remnant.streams]\nscaled = my_stream:make\n"
    )
    monkeypatch.syspath_prepend(str(files))
    settings = resolve("scaled", "pull", ["needed=1", "network=deep", "stream.scale=2"])
    assert (settings.method, settings.network, settings.stream) == ("pull", {"name": "deep"}, {"scale": 2.0})
    assert "pull" in METHODS


def test_a_method_of_ours_without_an_entry_runs_with_its_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(recipe("permuted-digits", "paper").methods, "ewc")
    assert resolve("permuted-digits", "ewc").options["lr"] == 0.01


def test_a_recipe_s_entry_comes_before_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "own", Own)  # type: ignore[arg-type]
    monkeypatch.setitem(recipe("permuted-digits", "paper").methods, "own", {"lr": 0.1})
    assert resolve("permuted-digits", "own").options == {"lr": 0.1}
    assert resolve("permuted-digits", "own", ["strength=0.5"]).options == {"lr": 0.1}  # its default
    assert resolve("permuted-digits", "own", ["strength=2"]).options == {"lr": 0.1, "strength": 2.0}
    monkeypatch.setitem(recipe("permuted-digits", "paper").methods, "own", {"lr": 0.1, "stiffness": 3})
    with pytest.raises(OptionError, match=r"permuted-digits.toml: stiffness = 3: own has no such setting"):
        resolve("permuted-digits", "own")
