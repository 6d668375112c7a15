"""The primal-dual step: what it does once, what it does after a stop, and where it refuses."""

from __future__ import annotations

import copy
from dataclasses import fields

import pytest
import torch
from torch import Tensor, nn

from vdenoise.descent import LayerDescent, Multipliers, PrimalDual

LAYERS = 3


class Network(nn.Module):
    """Three small layers on x; losses() gives f_0 … f_3."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weights = nn.ParameterList(
            nn.Parameter(
                torch.eye(4, dtype=dtype) + 0.2 * torch.randn(4, 4, generator=generator, dtype=dtype)
            )
            for _ in range(LAYERS)
        )

    def losses(self, seed: int, level: float = 0.5) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        dtype = self.weights[0].dtype
        clean = torch.randn(16, 2, generator=generator, dtype=dtype) @ torch.ones(2, 4, dtype=dtype)
        x = clean + level * torch.randn(16, 4, generator=generator, dtype=dtype)
        f = [(x - clean).square().mean()]
        for weight in self.weights:
            x = torch.tanh(x @ weight)
            f.append((x - clean).square().mean())
        return torch.stack(f)


def make(
    network: nn.Module, *, kind: str = "sgd", constraint: LayerDescent | None = None, **options
) -> PrimalDual:
    constraint = constraint or LayerDescent(LAYERS, alpha=0.2)
    dual = {name: options.pop(name) for name in ("resilience", "slack_lr", "cone") if name in options}
    multipliers = Multipliers(constraint, lr=options.pop("dual_lr", 0.3), **dual)
    optimizer = (
        torch.optim.Adam(network.parameters(), lr=1e-2)
        if kind == "adam"
        else torch.optim.SGD(network.parameters(), lr=0.1)
    )
    return PrimalDual(constraint, multipliers, optimizer, **options)


def weights(network: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in network.parameters()]


def assert_same(one: list[Tensor], other: list[Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# The Lagrangian


def with_multipliers(primal_dual: PrimalDual, values: list[float]) -> PrimalDual:
    primal_dual.multipliers.values = torch.tensor(values, dtype=torch.float64)
    return primal_dual


def test_the_lagrangian_is_the_formula():
    primal_dual = with_multipliers(make(Network()), [0.5, 2.0, 1.0])
    value = primal_dual.lagrangian(torch.tensor([8.0, 5.0, 4.0, 1.0], dtype=torch.float64))
    expected = 1 + 0.5 * (5 - 0.8 * 8) + 2 * (4 - 0.8 * 5) + (1 - 0.8 * 4)
    assert value.item() == pytest.approx(expected)


@pytest.mark.parametrize("detach", [False, True])
def test_the_weight_of_every_loss(detach):
    constraint = LayerDescent(LAYERS, alpha=(0.2, 0.3, 0.4), detach_previous=detach)
    primal_dual = with_multipliers(make(Network(), constraint=constraint), [0.5, 2.0, 1.0])
    f = torch.rand(4, dtype=torch.float64, requires_grad=True)
    primal_dual.lagrangian(f).backward()
    # Exact: λ_l − (1 − α_{l+1}) λ_{l+1}, here −0.9 for layer 1, which is rewarded for getting worse.
    exact = [-0.8 * 0.5, 0.5 - 0.7 * 2.0, 2.0 - 0.6 * 1.0, 1.0 + 1.0]
    detached = [0.0, 0.5, 2.0, 2.0]
    assert f.grad.tolist() == pytest.approx(detached if detach else exact)


def test_gradcheck_of_the_lagrangian_through_the_network():
    network = Network(torch.float64)
    primal_dual = with_multipliers(make(network), [0.5, 2.0, 1.0])

    def lagrangian(*values: Tensor) -> Tensor:
        return torch.func.functional_call(
            Lagrangian(network, primal_dual), dict(zip(names, values, strict=True)), ()
        )

    class Lagrangian(nn.Module):
        def __init__(self, network: Network, primal_dual: PrimalDual) -> None:
            super().__init__()
            self.network, self.primal_dual = network, primal_dual

        def forward(self) -> Tensor:
            return self.primal_dual.lagrangian(self.network.losses(0))

    names = [f"network.{name}" for name, _ in network.named_parameters()]
    assert torch.autograd.gradcheck(lagrangian, tuple(network.parameters()))


def test_the_detached_gradient_is_that_of_the_formula_with_the_previous_loss_constant():
    network = Network(torch.float64)
    constraint = LayerDescent(LAYERS, alpha=0.2, detach_previous=True)
    λ = [0.5, 2.0, 1.0]
    with_multipliers(make(network, constraint=constraint), λ).lagrangian(network.losses(0)).backward()
    gradients = [p.grad.clone() for p in network.parameters()]

    network.zero_grad()
    f = network.losses(0)
    constants = f.tolist()
    value = f[3] + sum(λ[i] * (f[i + 1] - 0.8 * constants[i]) for i in range(3))
    value.backward()
    for one, other in zip(gradients, network.parameters(), strict=True):
        torch.testing.assert_close(one, other.grad, rtol=1e-12, atol=1e-15)


def test_under_the_cone_no_layer_is_rewarded_for_getting_worse():
    network = Network()
    plain, cone = (make(network, dual_lr=1.0, cone=cone) for cone in (False, True))
    for slacks in ([0.0, 2.0, -1.0], [-1.0, 0.5, 4.0], [-3.0, 1.0, 1.0]):
        least = []
        for primal_dual in (plain, cone):
            primal_dual.multipliers.ascend(torch.tensor(slacks))
            f = torch.ones(4, dtype=torch.float64, requires_grad=True)
            primal_dual.lagrangian(f).backward()
            least.append(f.grad[1:].min().item())
        assert least[0] < 0 <= least[1] + 1e-12


# One step


@pytest.mark.parametrize("cadence", ["batch", "epoch"])
@pytest.mark.parametrize("resilience", [None, 2.0])
def test_steps_against_ones_written_out(cadence, resilience):
    network, by_hand = Network(torch.float64), Network(torch.float64)
    primal_dual = make(network, cadence=cadence, resilience=resilience, clip_norm=0.5)
    λ, u, α, sums = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64), 0.2, []
    clipped = False
    for step in range(9):
        report = primal_dual.step(network.losses(step))

        f = by_hand.losses(step)
        g = torch.stack([f[1] - (1 - α) * f[0], f[2] - (1 - α) * f[1], f[3] - (1 - α) * f[2]])
        gradients = torch.autograd.grad(f[3] + λ[0] * g[0] + λ[1] * g[1] + λ[2] * g[2], list(by_hand.weights))
        norm = torch.sqrt(sum(gradient.square().sum() for gradient in gradients))
        clipped |= bool(norm > 0.5)
        with torch.no_grad():
            for weight, gradient in zip(by_hand.weights, gradients, strict=True):
                weight -= 0.1 * gradient * min(1.0, 0.5 / (norm.item() + 1e-6))
        sums.append(g.detach())
        last_of_epoch = step % 3 == 2
        if cadence == "batch" or last_of_epoch:
            mean = sums[-1] if cadence == "batch" else torch.stack(sums).mean(0)
            λ = torch.clamp(λ + 0.3 * (mean - u), min=0)
            u = u if resilience is None else torch.clamp(u - (1 / resilience) * (resilience * u - λ), min=0)
        if last_of_epoch:
            primal_dual.end_epoch()
            sums = []

        torch.testing.assert_close(weights(network), weights(by_hand), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(primal_dual.multipliers.values, λ, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(primal_dual.multipliers.slack, u, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(report.slacks, g.detach())
        torch.testing.assert_close(report.losses, f.detach())
        torch.testing.assert_close(report.grad_norm, norm)
    assert clipped
    assert λ.max() > 0
    assert primal_dual.multipliers.updates == (9 if cadence == "batch" else 3)


def test_a_report_is_free_of_gradients_and_of_what_comes_after():
    network = Network()
    primal_dual = make(network)
    report = primal_dual.step(network.losses(0))
    values = {field.name: getattr(report, field.name) for field in fields(report)}
    assert not any(value.requires_grad for value in values.values())
    before = {name: value.clone() for name, value in values.items()}
    primal_dual.step(network.losses(1))
    assert all(torch.equal(before[name], values[name]) for name in values)
    assert torch.equal(report.objective, report.losses[-1])


def test_the_report_tells_the_lagrangian_of_the_multipliers_before_and_the_multipliers_after():
    network = Network(torch.float64)
    primal_dual = with_multipliers(make(network), [0.5, 2.0, 1.0])
    report = primal_dual.step(network.losses(0))
    before = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(report.lagrangian, report.objective + before @ report.slacks)
    torch.testing.assert_close(report.multipliers, (before + 0.3 * report.slacks).clamp(min=0))


def test_gradients_of_before_play_no_part():
    clean, dirty = Network(), Network()
    for weight in dirty.weights:
        weight.grad = torch.full_like(weight, 1e3)
    make(clean).step(clean.losses(0))
    make(dirty).step(dirty.losses(0))
    assert_same(weights(clean), weights(dirty))


def test_the_constraint_on_other_samples_than_the_objective():
    network, by_hand = Network(torch.float64), Network(torch.float64)
    primal_dual = with_multipliers(make(network), [0.5, 2.0, 1.0])
    report = primal_dual.step(network.losses(0), network.losses(1, level=2.0))

    f, wide = by_hand.losses(0), by_hand.losses(1, level=2.0)
    g = wide[1:] - 0.8 * wide[:-1]
    value = f[3] + torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64) @ g
    gradients = torch.autograd.grad(value, list(by_hand.weights))
    expected = [w.detach() - 0.1 * gradient for w, gradient in zip(by_hand.weights, gradients, strict=True)]
    torch.testing.assert_close(weights(network), expected)
    torch.testing.assert_close(report.slacks, g.detach())
    torch.testing.assert_close(report.losses, f.detach())
    torch.testing.assert_close(report.lagrangian, value.detach())


def test_an_epoch_is_the_mean_of_its_batches_and_ends_once():
    network = Network()
    primal_dual = make(network, cadence="epoch")
    primal_dual.end_epoch()
    assert primal_dual.multipliers.updates == 0  # an epoch without a batch
    slacks = [primal_dual.step(network.losses(i)).slacks for i in range(3)]
    assert primal_dual.multipliers.updates == 0
    primal_dual.end_epoch()
    primal_dual.end_epoch()
    assert primal_dual.multipliers.updates == 1
    expected = (0.3 * torch.stack(slacks).double().mean(0)).clamp(min=0)
    torch.testing.assert_close(primal_dual.multipliers.values, expected)


# No constraint


def test_without_a_constraint_it_is_plain_training_of_the_last_layer():
    network, plain, rate_zero = Network(), Network(), Network()
    erm = PrimalDual(
        None,
        Multipliers(LayerDescent(LAYERS), lr=0.3),
        torch.optim.Adam(network.parameters(), lr=1e-2),
        clip_norm=0.5,
    )
    fixed = make(rate_zero, kind="adam", dual_lr=0.0, clip_norm=0.5)
    optimizer = torch.optim.Adam(plain.parameters(), lr=1e-2)
    for step in range(20):
        report = erm.step(network.losses(step), network.losses(step + 1))
        fixed.step(rate_zero.losses(step))
        optimizer.zero_grad()
        plain.losses(step)[-1].backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
    erm.end_epoch()
    assert_same(weights(network), weights(plain))
    assert_same(weights(rate_zero), weights(plain))
    assert erm.multipliers.values.tolist() == fixed.multipliers.values.tolist() == [0.0] * 3
    assert erm.multipliers.updates == 0
    assert report.slacks.tolist() == [0.0] * 3
    assert torch.equal(report.lagrangian, report.objective)


def test_without_clipping_the_norm_is_still_told():
    network, by_hand = Network(), Network()
    report = make(network).step(network.losses(0))
    gradients = torch.autograd.grad(by_hand.losses(0)[-1], list(by_hand.weights))
    torch.testing.assert_close(report.grad_norm, torch.cat([g.flatten() for g in gradients]).norm())


# Stop and go on


@pytest.mark.parametrize(("cadence", "resilience"), [("batch", None), ("epoch", 0.7)])
def test_100_and_100_steps_are_200_steps_to_the_bit(tmp_path, cadence, resilience):
    def begin() -> tuple[Network, PrimalDual]:
        network = Network()
        return network, make(network, kind="adam", cadence=cadence, resilience=resilience, clip_norm=1.0)

    def run(network: Network, primal_dual: PrimalDual, start: int, stop: int) -> None:
        for step in range(start, stop):
            primal_dual.step(network.losses(step))
            if step % 7 == 6:  # 100 is within an epoch, whose sums must go along
                primal_dual.end_epoch()

    whole = begin()
    run(*whole, 0, 200)

    network, primal_dual = begin()
    run(network, primal_dual, 0, 100)
    parts = {"network": network, "primal_dual": primal_dual, "optimizer": primal_dual.optimizer}
    torch.save({name: part.state_dict() for name, part in parts.items()}, tmp_path / "state")

    network, primal_dual = begin()
    state = torch.load(tmp_path / "state", weights_only=True)
    network.load_state_dict(state["network"])
    primal_dual.load_state_dict(state["primal_dual"])
    primal_dual.optimizer.load_state_dict(state["optimizer"])
    run(network, primal_dual, 100, 200)

    assert_same(weights(network), weights(whole[0]))
    for name, value in whole[1].multipliers.state_dict().items():
        assert torch.equal(
            torch.as_tensor(value), torch.as_tensor(primal_dual.multipliers.state_dict()[name])
        ), name
    assert whole[1].multipliers.values.max() > 0
    assert primal_dual.steps == 200


# Refusals


def everything(network: Network, primal_dual: PrimalDual) -> dict:
    states = (network.state_dict(), primal_dual.state_dict(), primal_dual.optimizer.state_dict())
    return {"states": copy.deepcopy(states)}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", [0, 1, 3])
@pytest.mark.parametrize("constrained", [True, False])
@pytest.mark.parametrize("cadence", ["batch", "epoch"])
def test_a_loss_that_is_not_finite_changes_nothing(bad, where, constrained, cadence):
    network = Network()
    primal_dual = make(network, kind="adam", cadence=cadence)
    if not constrained:
        primal_dual.constraint = None
    primal_dual.step(network.losses(0))
    before = everything(network, primal_dual)
    f = network.losses(1)
    factor = torch.ones(4)
    factor[where] = bad
    with pytest.raises(ValueError, match=r"losses and gradient must be finite, got .* at step 1; lower the"):
        primal_dual.step(f * factor)
    torch.testing.assert_close(everything(network, primal_dual), before, rtol=0, atol=0)
    report = primal_dual.step(network.losses(1))  # and it can go on
    assert torch.isfinite(report.lagrangian)


def test_constraint_losses_that_are_not_finite_change_nothing():
    network = Network()
    primal_dual = make(network)
    before = everything(network, primal_dual)
    with pytest.raises(ValueError, match="losses and gradient must be finite"):
        primal_dual.step(network.losses(0), network.losses(1) * float("nan"))
    torch.testing.assert_close(everything(network, primal_dual), before, rtol=0, atol=0)


def test_a_gradient_that_is_not_finite_changes_nothing():
    network = Network()
    primal_dual = make(network, kind="adam", clip_norm=1.0)
    before = everything(network, primal_dual)
    root = torch.sqrt(network.weights[0][0, 0] * 0)  # 0, with an infinite slope
    with pytest.raises(ValueError, match="gradient norm nan"):
        primal_dual.step(network.losses(0) + root)
    torch.testing.assert_close(everything(network, primal_dual), before, rtol=0, atol=0)
    assert all(weight.grad is None for weight in network.weights)


def test_another_cadence():
    with pytest.raises(ValueError, match="cadence must be 'batch' or 'epoch', got 'week'"):
        make(Network(), cadence="week")


@pytest.mark.parametrize("norm", [0.0, -1.0, float("nan")])
def test_a_norm_that_clips_everything(norm):
    with pytest.raises(ValueError, match="clip_norm must be above 0, or None for no clipping, got"):
        make(Network(), clip_norm=norm)


def test_multipliers_of_another_constraint():
    network = Network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    constraint = LayerDescent(3, alpha=0.1)
    with pytest.raises(
        ValueError, match=r"multipliers must be of the constraint .* make them with Multipliers"
    ):
        PrimalDual(constraint, Multipliers(LayerDescent(3, alpha=0.2), lr=0.1), optimizer)
    PrimalDual(constraint, Multipliers(constraint, lr=0.1), optimizer)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_device_it_takes_the_same_steps():
    constraint = LayerDescent(LAYERS, alpha=(0.1, 0.2, 0.3))
    network = Network(torch.float64)
    here = make(network, constraint=constraint)
    twin = copy.deepcopy(network).cuda()
    there = PrimalDual(
        constraint,
        Multipliers(constraint, lr=0.3, device="cuda"),
        torch.optim.SGD(twin.parameters(), lr=0.1),
    )
    x = torch.rand(16, 4, dtype=torch.float64)

    def losses(net: Network, x: Tensor) -> Tensor:
        clean, f = x.round(), [(x - x.round()).square().mean()]
        for weight in net.weights:
            x = torch.tanh(x @ weight)
            f.append((x - clean).square().mean())
        return torch.stack(f)

    for _ in range(5):
        here.step(losses(network, x))
        there.step(losses(twin, x.cuda()))
    assert there.multipliers.values.is_cuda
    torch.testing.assert_close([w.cpu() for w in weights(twin)], weights(network))
    torch.testing.assert_close(there.multipliers.values.cpu(), here.multipliers.values)
