"""softmax(q kᵀ + b) v and the norms of its rows: every input is read once, every output written once.

Values are wide and features may be, so both are taken in pieces of BM and BR columns. Where all features fit
into one piece, the backward pass keeps them on the chip; wider ones it reads a second time.
"""

import triton
import triton.language as tl

from vdenoise.ops._triton.tiles import load_row, load_tile, matmul, softmax, softmax_backward, store_tile


@triton.jit
def _logits(
    q, k, queries, keys, q_t, q_c, k_t, k_c, t, r,
    T: tl.constexpr, R: tl.constexpr, BR: tl.constexpr, SAME_QK: tl.constexpr,
):  # fmt: skip
    """The products q kᵀ (BT, BT) of a sequence whose first BR features are loaded already."""
    products = matmul(queries, tl.trans(keys))
    for r0 in range(BR, R, BR):
        more_keys = load_tile(k, k_t, k_c, t, r0 + r, T, R)
        more = more_keys if SAME_QK else load_tile(q, q_t, q_c, t, r0 + r, T, R)
        products += matmul(more, tl.trans(more_keys))
    return products


@triton.jit
def attention_forward(
    q, k, v, bias, out, norm,
    q_n, q_t, q_c, k_n, k_t, k_c, v_n, v_t, v_c, bias_n, bias_t,
    T: tl.constexpr, R: tl.constexpr, M: tl.constexpr,
    BT: tl.constexpr, BR: tl.constexpr, BM: tl.constexpr,
    SAME_QK: tl.constexpr, SAME_KV: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """One sequence: out (T, M) and norm (T)."""
    n = tl.program_id(0).to(tl.int64)
    t, r, c = tl.arange(0, BT), tl.arange(0, BR), tl.arange(0, BM)
    q, k, v, out = q + n * q_n, k + n * k_n, v + n * v_n, out + n * (T * M)
    keys = load_tile(k, k_t, k_c, t, r, T, R)
    queries = keys if SAME_QK else load_tile(q, q_t, q_c, t, r, T, R)
    logits = _logits(q, k, queries, keys, q_t, q_c, k_t, k_c, t, r, T, R, BR, SAME_QK)
    if BIAS:
        logits += load_row(bias + n * bias_n, bias_t, t, T)[None, :]
    w = softmax(logits, t, T)
    length = tl.sqrt(tl.sum(w * w, 1))
    tl.store(norm + n * T + t, length.to(norm.dtype.element_ty), mask=t < T)
    if SAME_KV:
        store_tile(out, M, 1, t, r, T, M, matmul(w.to(keys.dtype), keys))
    else:
        for c0 in range(0, M, BM):
            values = load_tile(v, v_t, v_c, t, c0 + c, T, M)
            store_tile(out, M, 1, t, c0 + c, T, M, matmul(w.to(values.dtype), values))


@triton.jit
def attention_backward(
    q, k, v, bias, grad_out, grad_norm, dq, dk, dv, dbias,
    q_n, q_t, q_c, k_n, k_t, k_c, v_n, v_t, v_c, bias_n, bias_t, go_n, go_t, go_c, gn_n, gn_t,
    T: tl.constexpr, R: tl.constexpr, M: tl.constexpr,
    BT: tl.constexpr, BR: tl.constexpr, BM: tl.constexpr,
    SAME_QK: tl.constexpr, SAME_KV: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """One sequence: dq, dk (T, R), dv (T, M), dbias (T).

    Inputs that are one tensor get one gradient, the sum: dk is then not written, and dq holds dq + dk
    (SAME_QK); dv holds dv + dk (SAME_KV), or all three.
    """
    n = tl.program_id(0).to(tl.int64)
    t, r, c = tl.arange(0, BT), tl.arange(0, BR), tl.arange(0, BM)
    q, k, v, grad_out = q + n * q_n, k + n * k_n, v + n * v_n, grad_out + n * go_n
    dq, dk, dv = dq + n * (T * R), dk + n * (T * R), dv + n * (T * M)
    keys = load_tile(k, k_t, k_c, t, r, T, R)
    queries = keys if SAME_QK else load_tile(q, q_t, q_c, t, r, T, R)
    logits = _logits(q, k, queries, keys, q_t, q_c, k_t, k_c, t, r, T, R, BR, SAME_QK)
    if BIAS:
        logits += load_row(bias + n * bias_n, bias_t, t, T)[None, :]
    w = softmax(logits, t, T)
    length = tl.sqrt(tl.sum(w * w, 1))
    # d‖w‖/dw = w/‖w‖; padded rows have ‖w‖ = 0.
    dw = w * (load_row(grad_norm + n * gn_n, gn_t, t, T) / tl.where(t < T, length, 1.0))[:, None]
    if SAME_KV:
        g = load_tile(grad_out, go_t, go_c, t, r, T, M)
        dw += matmul(g, tl.trans(keys))
        ds = softmax_backward(w, dw)
        d_values = matmul(tl.trans(w).to(g.dtype), g) + matmul(tl.trans(ds).to(keys.dtype), queries)
        d_queries = matmul(ds.to(keys.dtype), keys)
        if SAME_QK:
            d_values += d_queries
        else:
            store_tile(dq, R, 1, t, r, T, R, d_queries)
        store_tile(dv, M, 1, t, r, T, M, d_values)
    else:
        for c0 in range(0, M, BM):
            values = load_tile(v, v_t, v_c, t, c0 + c, T, M)
            g = load_tile(grad_out, go_t, go_c, t, c0 + c, T, M)
            dw += matmul(g, tl.trans(values))
            store_tile(dv, M, 1, t, c0 + c, T, M, matmul(tl.trans(w).to(g.dtype), g))
        ds = softmax_backward(w, dw)
        for r0 in range(0, R, BR):
            if R > BR:
                keys = load_tile(k, k_t, k_c, t, r0 + r, T, R)
                queries = keys if SAME_QK else load_tile(q, q_t, q_c, t, r0 + r, T, R)
            d_queries = matmul(ds.to(keys.dtype), keys)
            d_keys = matmul(tl.trans(ds).to(keys.dtype), queries)
            if SAME_QK:
                store_tile(dq, R, 1, t, r0 + r, T, R, d_queries + d_keys)
            else:
                store_tile(dq, R, 1, t, r0 + r, T, R, d_queries)
                store_tile(dk, R, 1, t, r0 + r, T, R, d_keys)
    if BIAS:
        tl.store(dbias + n * T + t, tl.sum(ds, 0).to(dbias.dtype.element_ty), mask=t < T)
