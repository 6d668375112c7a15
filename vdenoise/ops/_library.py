"""The operations as torch.library knows them, so that autograd and torch.compile see past the kernels.

Forward and backward pass of each: the kernels on a CUDA device and under Triton's interpreter, the formulas
on the CPU, so that what is registered can be tested on any machine. ``k`` or ``v`` None is the tensor before
it, and its gradient is part of that tensor's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from vdenoise.ops._dispatch import kernels_serve
from vdenoise.ops.attention import attention as plain_attention
from vdenoise.ops.attention import attention_gradients as plain_attention_gradients
from vdenoise.ops.mix import mix_formula
from vdenoise.ops.mix import mix_gradients as plain_mix_gradients


@custom_op("vdenoise::attention", mutates_args=())
def attention(q: Tensor, k: Tensor | None, v: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """out (N, T, m) and norm (N, T)."""
    if kernels_serve(q):
        from vdenoise.ops._triton.launch import attend

        return attend(q, k, v, bias)
    keys = q if k is None else k
    return plain_attention(q, keys, keys if v is None else v, bias, "torch")


@attention.register_fake
def _(q: Tensor, k: Tensor | None, v: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    values = next(x for x in (v, k, q) if x is not None)
    return values.new_empty(values.shape), q.new_empty(q.shape[:-1])


@custom_op("vdenoise::attention_backward", mutates_args=())
def attention_backward(
    q: Tensor, k: Tensor | None, v: Tensor | None, bias: Tensor | None, grad_out: Tensor, grad_norm: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, bias; empty for None."""
    if kernels_serve(q):
        from vdenoise.ops._triton.launch import attend_backward

        return attend_backward(q, k, v, bias, grad_out, grad_norm)
    keys = q if k is None else k
    dq, dk, dv, dbias = plain_attention_gradients(
        q, keys, keys if v is None else v, bias, grad_out, grad_norm
    )
    if v is None:
        dk, dv = dk + dv, q.new_empty(0)
    if k is None:
        dq, dk = dq + dk, q.new_empty(0)
    return dq, dk, dv, q.new_empty(0) if bias is None else dbias


@attention_backward.register_fake
def _(
    q: Tensor, k: Tensor | None, v: Tensor | None, bias: Tensor | None, grad_out: Tensor, grad_norm: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv, dbias = (q.new_empty(0) if x is None else x.new_empty(x.shape) for x in (q, k, v, bias))
    return dq, dk, dv, dbias


def _keep_attention(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _attention_backward(ctx: Any, grad_out: Tensor, grad_norm: Tensor) -> tuple[Tensor | None, ...]:
    inputs = ctx.saved_tensors
    grads = torch.ops.vdenoise.attention_backward(*inputs, grad_out, grad_norm)
    return tuple(None if x is None else grad for x, grad in zip(inputs, grads, strict=True))


attention.register_autograd(_attention_backward, setup_context=_keep_attention)


@custom_op("vdenoise::gaussian_mix", mutates_args=())
def gaussian_mix(
    f: Tensor,
    u: Tensor,
    bandwidth: Tensor,
    gate: Tensor,
    threshold: Tensor | None,
    per_noise: Tensor | None,
    sigma: Tensor | None,
) -> Tensor:
    """Z (N, T, m)."""
    if kernels_serve(u):
        from vdenoise.ops._triton.launch import Tail, mix

        return mix(f, u, bandwidth, Tail(gate, threshold, per_noise, sigma))
    return mix_formula(f, u, bandwidth, gate, threshold, per_noise, sigma)


@gaussian_mix.register_fake
def _(
    f: Tensor,
    u: Tensor,
    bandwidth: Tensor,
    gate: Tensor,
    threshold: Tensor | None,
    per_noise: Tensor | None,
    sigma: Tensor | None,
) -> Tensor:
    return u.new_empty(u.shape)


@custom_op("vdenoise::gaussian_mix_backward", mutates_args=())
def gaussian_mix_backward(
    f: Tensor,
    u: Tensor,
    bandwidth: Tensor,
    gate: Tensor,
    threshold: Tensor | None,
    per_noise: Tensor | None,
    sigma: Tensor | None,
    grad: Tensor,
    parameters: bool,
) -> list[Tensor]:
    """Gradients of all seven, empty for None; without ``parameters`` of f and u alone."""
    if kernels_serve(u):
        from vdenoise.ops._triton.launch import Tail, mix_gradients

        tail = Tail(gate, threshold, per_noise, sigma)
        return list(mix_gradients(f, u, bandwidth, tail, grad, parameters))
    grads = plain_mix_gradients(f, u, bandwidth, gate, threshold, per_noise, sigma, grad)
    return list(grads) if parameters else [*grads[:2], *(u.new_empty(0) for _ in range(5))]


@gaussian_mix_backward.register_fake
def _(
    f: Tensor,
    u: Tensor,
    bandwidth: Tensor,
    gate: Tensor,
    threshold: Tensor | None,
    per_noise: Tensor | None,
    sigma: Tensor | None,
    grad: Tensor,
    parameters: bool,
) -> list[Tensor]:
    rest = (bandwidth, gate, threshold, per_noise, sigma)
    there = (x if parameters else None for x in rest)
    return [
        f.new_empty(f.shape),
        u.new_empty(u.shape),
        *(u.new_empty(0) if x is None else x.new_empty(x.shape) for x in there),
    ]


def _keep_mix(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _mix_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    inputs = ctx.saved_tensors
    parameters = any(ctx.needs_input_grad[2:])
    grads = torch.ops.vdenoise.gaussian_mix_backward(*inputs, grad, parameters)
    needed = zip(ctx.needs_input_grad, grads, strict=True)
    return tuple(g if needs else None for needs, g in needed)


gaussian_mix.register_autograd(_mix_backward, setup_context=_keep_mix)
