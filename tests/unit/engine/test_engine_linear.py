"""Packed linear layers: the plain product, or the plain layer."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

from swarm.engine import linear
from swarm.engine.linear import DirectLinear, PackedLinear, speed_up_linears


@pytest.mark.parametrize("rows", [1, 3, 4, 7, 33])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [PackedLinear, DirectLinear])
def test_equals_the_plain_layer(rows, bias, kind) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(48, 80, bias=bias).requires_grad_(False)
    x = torch.randn(1, rows, 48)
    wanted = plain(x)
    torch.testing.assert_close(kind(plain)(x), wanted, atol=1e-5, rtol=1e-5)


def test_old_weights_go_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a server would hold its span twice while it starts."""
    root = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))).requires_grad_(False)
    old = [weakref.ref(layer.weight) for layer in root]
    alive: list[int] = []
    checked = linear._checked

    def watch(layer: nn.Linear, kind: type) -> nn.Module | None:
        alive.append(sum(weight() is not None for weight in old))
        return checked(layer, kind)

    monkeypatch.setattr(linear, "_checked", watch)
    speed_up_linears(root, pack=True)
    assert alive == [4, 3, 2, 1]


def test_replaces_all_but_special_layers() -> None:
    class Quantized(nn.Linear):
        pass

    root = nn.Sequential(nn.Linear(8, 8), Quantized(8, 8), nn.Sequential(nn.Linear(8, 8)), nn.Linear(8, 8))
    root.requires_grad_(False)
    root[3].register_forward_pre_hook(lambda *_: None)
    assert speed_up_linears(root, pack=True) == 2
    assert [type(root[0]), type(root[1]), type(root[2][0]), type(root[3])] == [
        PackedLinear,
        Quantized,
        PackedLinear,
        nn.Linear,
    ]
    assert root[0].weight.shape == (8, 8)
    assert root[0].weight.is_meta  # the old memory is given back


@pytest.mark.parametrize("wrong", [1.01, float("nan")])
def test_a_wrong_kernel_is_not_used(monkeypatch, wrong) -> None:
    class Broken(PackedLinear):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return super().forward(rows) * wrong

    monkeypatch.setattr(linear, "PackedLinear", Broken)
    root = nn.Sequential(nn.Linear(8, 8)).requires_grad_(False)
    assert speed_up_linears(root, pack=True) == 0
    assert type(root[0]) is nn.Linear


def test_a_missing_kernel_is_no_error(monkeypatch) -> None:
    class Missing(PackedLinear):
        def __init__(self, linear: nn.Linear) -> None:
            raise AttributeError("no such operator")

    monkeypatch.setattr(linear, "PackedLinear", Missing)
    root = nn.Sequential(nn.Linear(8, 8)).requires_grad_(False)
    assert speed_up_linears(root, pack=True) == 0
