"""What methods that grow a network share: which parameters grow, and the spread of new weights."""

from torch import nn

from remnant.models import Network


def wired_parameters(network: Network) -> dict[str, nn.Parameter]:
    """The weights and biases of the layers in `Network.wiring`, by name: all but heads and norms."""
    makers = [maker for units in network.wiring() for maker in units.made_by]
    wired = {p for maker in makers for p in maker.layer.parameters()}
    return {name: p for name, p in network.named_parameters() if p in wired and p.requires_grad}
