"""Gaussian-kernel attention with what DUST and UT do to its result: u is read once, z written once.

    w = softmax_j(−‖f_i − f_j‖² / h)      x = u + g ⊙ (w u − u)      z = x − clip(x, −τ, τ)
    τ = τ₀ + τ₁ σ ‖w‖                            one row per frame, one column per value

A tile of u serves as values, as what the gate falls back to, and in the backward pass as the other factor of
dw. The columns are C channels of G codes side by side, and gate and thresholds are common to the channels:
column c has those of code c mod G.
"""

import triton
import triton.language as tl

from vdenoise.ops._triton.tiles import load_tile, matmul, softmax, softmax_backward, store_tile


@triton.jit
def _distances(f, first, f_t, f_c, t, r, T: tl.constexpr, R: tl.constexpr, BR: tl.constexpr):
    """−‖f_i − f_j‖² = 2 f_iᵀf_j − ‖f_i‖² − ‖f_j‖², (BT, BT).

    The softmax does not see ‖f_i‖², but the gradient of h sums ds ⊙ distances, and small distances sum best.
    """
    products = matmul(first, tl.trans(first))
    wide = first.to(tl.float32)
    squares = tl.sum(wide * wide, 1)
    for r0 in range(BR, R, BR):
        more = load_tile(f, f_t, f_c, t, r0 + r, T, R)
        products += matmul(more, tl.trans(more))
        wide = more.to(tl.float32)
        squares += tl.sum(wide * wide, 1)
    return 2 * products - squares[:, None] - squares[None, :]


@triton.jit
def _thresholds(
    tau0, tau1, spread, c, M: tl.constexpr, G: tl.constexpr, ADAPTIVE: tl.constexpr
):  # fmt: skip
    """τ₀ + τ₁ σ‖w‖, (BT, BM); ``spread`` is σ‖w‖ (BT)."""
    tau = tl.load(tau0 + c % G, mask=c < M, other=0.0)[None, :] + tl.zeros_like(spread)[:, None]
    if ADAPTIVE:
        tau += tl.load(tau1 + c % G, mask=c < M, other=0.0)[None, :] * spread[:, None]
    return tau


@triton.jit
def mix_forward(
    f, u, bandwidth, gate, tau0, tau1, sigma, z,
    f_n, f_t, f_c, u_n, u_t, u_c, per_sigma,
    T: tl.constexpr, R: tl.constexpr, M: tl.constexpr, G: tl.constexpr,
    BT: tl.constexpr, BR: tl.constexpr, BM: tl.constexpr,
    THRESHOLD: tl.constexpr, ADAPTIVE: tl.constexpr,
):  # fmt: skip
    """One sequence: z (T, M). Sequence n has the noise level sigma[n // per_sigma]."""
    n = tl.program_id(0).to(tl.int64)
    t, r, c = tl.arange(0, BT), tl.arange(0, BR), tl.arange(0, BM)
    f, u, z = f + n * f_n, u + n * u_n, z + n * (T * M)
    first = load_tile(f, f_t, f_c, t, r, T, R)
    w = softmax(_distances(f, first, f_t, f_c, t, r, T, R, BR) / tl.load(bandwidth), t, T)
    spread = tl.sqrt(tl.sum(w * w, 1))
    if ADAPTIVE:
        spread *= tl.load(sigma + n // per_sigma)
    for c0 in range(0, M, BM):
        values = load_tile(u, u_t, u_c, t, c0 + c, T, M)
        own = values.to(tl.float32)
        g = tl.load(gate + (c0 + c) % G)[None, :]
        x = own + g * (matmul(w.to(values.dtype), values) - own)
        if THRESHOLD:
            tau = _thresholds(tau0, tau1, spread, c0 + c, M, G, ADAPTIVE)
            x -= tl.maximum(tl.minimum(x, tau), -tau)
        store_tile(z, M, 1, t, c0 + c, T, M, x)


@triton.jit
def mix_backward(
    f, u, bandwidth, gate, tau0, tau1, sigma, grad, df, du, d_inverse, d_columns, d_sigma,
    f_n, f_t, f_c, u_n, u_t, u_c, g_n, g_t, g_c, per_sigma, sequences, programs,
    T: tl.constexpr, R: tl.constexpr, M: tl.constexpr, G: tl.constexpr,
    BT: tl.constexpr, BR: tl.constexpr, BM: tl.constexpr,
    THRESHOLD: tl.constexpr, ADAPTIVE: tl.constexpr, PARAMETERS: tl.constexpr,
):  # fmt: skip
    """Sequences pid, pid + programs, …: df (T, R) and du (T, M) of each, and the program's share of the rest.

    PARAMETERS: d_inverse (programs,) of 1/h, d_columns (programs, 3, M) of gate, τ₀, τ₁, d_sigma (N,).
    Each program adds up in a row of its own, in a fixed order: no atomics, the same sums every time.
    """
    pid = tl.program_id(0)
    t, r, c = tl.arange(0, BT), tl.arange(0, BR), tl.arange(0, BM)
    inverse = 1.0 / tl.load(bandwidth)
    d_inv = 0.0
    d_columns += pid.to(tl.int64) * (3 * M)
    n = pid.to(tl.int64)
    for _ in range(pid, sequences, programs):
        f_, u_, grad_ = f + n * f_n, u + n * u_n, grad + n * g_n
        df_, du_ = df + n * (T * R), du + n * (T * M)
        first = load_tile(f_, f_t, f_c, t, r, T, R)
        distances = _distances(f_, first, f_t, f_c, t, r, T, R, BR)
        w = softmax(distances * inverse, t, T)
        length = tl.sqrt(tl.sum(w * w, 1))
        spread = length
        if ADAPTIVE:
            level = tl.load(sigma + n // per_sigma)
            spread = length * level
        dw = tl.zeros((BT, BT), tl.float32)
        d_spread = tl.zeros((BT,), tl.float32)
        for c0 in range(0, M, BM):
            values = load_tile(u_, u_t, u_c, t, c0 + c, T, M)
            dx = load_tile(grad_, g_t, g_c, t, c0 + c, T, M).to(tl.float32)
            own = values.to(tl.float32)
            g = tl.load(gate + (c0 + c) % G)[None, :]
            if THRESHOLD or PARAMETERS:
                change = matmul(w.to(values.dtype), values) - own
            if THRESHOLD:
                x = own + g * change
                tau = _thresholds(tau0, tau1, spread, c0 + c, M, G, ADAPTIVE)
                dx = tl.where(tl.abs(x) > tau, dx, 0.0)
                d_tau = tl.where(x > 0, -dx, dx)
                if ADAPTIVE:
                    slope = tl.load(tau1 + (c0 + c) % G)
                    d_spread += tl.sum(d_tau * slope[None, :], 1)
            d_mixed = (g * dx).to(values.dtype)
            dw += matmul(d_mixed, tl.trans(values))
            d_own = matmul(tl.trans(w).to(values.dtype), d_mixed) + (1 - g) * dx
            store_tile(du_, M, 1, t, c0 + c, T, M, d_own)
            if PARAMETERS:
                place = d_columns + c0 + c
                later = (c0 + c < M) & (n > pid)
                inside = c0 + c < M
                tl.store(place, tl.load(place, later, 0.0) + tl.sum(dx * change, 0), inside)
                if THRESHOLD:
                    tl.store(place + M, tl.load(place + M, later, 0.0) + tl.sum(d_tau, 0), inside)
                if ADAPTIVE:
                    by_noise = tl.sum(d_tau * spread[:, None], 0)
                    tl.store(place + 2 * M, tl.load(place + 2 * M, later, 0.0) + by_noise, inside)
        if ADAPTIVE:
            if PARAMETERS:
                tl.store(d_sigma + n, tl.sum(d_spread * length, 0))
            # d‖w‖/dw = w/‖w‖; padded rows have ‖w‖ = 0.
            dw += w * (d_spread * level / tl.where(t < T, length, 1.0))[:, None]
        ds = softmax_backward(w, dw)
        if PARAMETERS:
            d_inv += tl.sum(tl.sum(ds * distances, 1), 0)
        # Row and column of f_i at once: Σ_j (ds_ij + ds_ji) f_j − (Σ_j ds_ji) f_i, times 2/h.
        both = ds + tl.trans(ds)
        keys = tl.sum(ds, 0)[:, None]
        for r0 in range(0, R, BR):
            if R > BR:
                first = load_tile(f_, f_t, f_c, t, r0 + r, T, R)
            towards = matmul(both.to(first.dtype), first) - keys * first.to(tl.float32)
            store_tile(df_, R, 1, t, r0 + r, T, R, 2 * inverse * towards)
        n += programs
        tl.debug_barrier()  # the next sequence's sums read what these threads have written
    if PARAMETERS:
        tl.store(d_inverse + pid, d_inv)
