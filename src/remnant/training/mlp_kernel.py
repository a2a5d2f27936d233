"""Many steps of plain SGD on a small fully connected network as one GPU kernel, with inputs projected (Eq. 6–7).

A step of batch 10 on the permuted-MNIST network is some thirty kernels of a few microseconds, most of it waiting. Here one
thread block takes a whole run of steps: the batch, both hidden layers and the loss stay on the chip, weights stay in its
cache, and every seed has a block of its own.

For each layer with input x, weight W and what remains P = I − M·Mᵀ:  W ← W − lr·δᵀ·(x·P).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def train_mlp(
    x_ptr, remaining_ptr, y_ptr, order_ptr, w1_ptr, w2_ptr, w3_ptr, p2_ptr, p3_ptr, lr_ptr, loss_ptr, steps,
    inputs: tl.constexpr, hidden1: tl.constexpr, hidden2: tl.constexpr, classes: tl.constexpr, batch: tl.constexpr,
    PROJECT: tl.constexpr, PRECISION: tl.constexpr, PROJECTING: tl.constexpr,
    B: tl.constexpr, K: tl.constexpr, H: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """PROJECTING: the precision of h·P, most of which cancels. `order`: steps × batch rows.

    B, K, H, C: powers of two for a batch, a piece of the input, a hidden layer, the head.
    """
    rows = tl.arange(0, B)
    units = tl.arange(0, H)
    outs = tl.arange(0, C)
    pieces = tl.arange(0, K)
    seen = rows < batch
    lr = tl.load(lr_ptr)
    summed = 0.0

    w2_at = w2_ptr + units[:, None] * hidden1 + units[None, :]
    w2_there = (units[:, None] < hidden2) & (units[None, :] < hidden1)
    w2 = tl.load(w2_at, mask=w2_there, other=0.0)
    w3_at = w3_ptr + outs[:, None] * hidden2 + units[None, :]
    w3_there = (outs[:, None] < classes) & (units[None, :] < hidden2)
    w3 = tl.load(w3_at, mask=w3_there, other=0.0)
    p2_at = p2_ptr + units[:, None] * hidden1 + units[None, :]
    p2_there = (units[:, None] < hidden1) & (units[None, :] < hidden1)
    p3_at = p3_ptr + units[:, None] * hidden2 + units[None, :]
    p3_there = (units[:, None] < hidden2) & (units[None, :] < hidden2)

    for step in range(steps):
        index = tl.load(order_ptr + step * batch + rows, mask=seen, other=0)
        label = tl.load(y_ptr + index, mask=seen, other=0)

        # forward
        z1 = tl.zeros((B, H), tl.float32)
        for start in range(0, inputs, K):
            at = start + pieces
            x = tl.load(
                x_ptr + index[:, None] * inputs + at[None, :], mask=seen[:, None] & (at[None, :] < inputs), other=0.0
            )
            w1 = tl.load(
                w1_ptr + units[:, None] * inputs + at[None, :],
                mask=(units[:, None] < hidden1) & (at[None, :] < inputs),
                other=0.0,
            )
            z1 = tl.dot(x, tl.trans(w1), acc=z1, input_precision=PRECISION)
        h1 = tl.maximum(z1, 0.0)
        h2 = tl.maximum(tl.dot(h1, tl.trans(w2), input_precision=PRECISION), 0.0)
        scores = tl.dot(h2, tl.trans(w3), input_precision=PRECISION)
        scores = tl.where(outs[None, :] < classes, scores, float("-inf"))

        # cross-entropy, mean over the batch
        top = tl.max(scores, axis=1)
        shares = tl.exp(scores - top[:, None])
        total = tl.sum(shares, axis=1)
        right = outs[None, :] == label[:, None]
        chosen = tl.sum(tl.where(right, scores, 0.0), axis=1)
        summed += tl.sum(tl.where(seen, tl.log(total) + top - chosen, 0.0)) / batch
        d3 = tl.where(seen[:, None], shares / total[:, None] - right.to(tl.float32), 0.0) / batch

        # backward
        d2 = tl.where(h2 > 0, tl.dot(d3, w3, input_precision=PRECISION), 0.0)
        d1 = tl.where(h1 > 0, tl.dot(d2, w2, input_precision=PRECISION), 0.0)
        if PROJECT:
            h1 = tl.dot(h1, tl.load(p2_at, mask=p2_there, other=0.0), input_precision=PROJECTING)
            h2 = tl.dot(h2, tl.load(p3_at, mask=p3_there, other=0.0), input_precision=PROJECTING)
        w3 -= lr * tl.dot(tl.trans(d3), h2, input_precision=PRECISION)
        w2 -= lr * tl.dot(tl.trans(d2), h1, input_precision=PRECISION)
        tl.debug_barrier()  # all of W1 was read
        for start in range(0, inputs, K):
            at = start + pieces
            x = tl.load(
                remaining_ptr + index[:, None] * inputs + at[None, :],
                mask=seen[:, None] & (at[None, :] < inputs),
                other=0.0,
            )
            w1_at = w1_ptr + units[:, None] * inputs + at[None, :]
            w1_there = (units[:, None] < hidden1) & (at[None, :] < inputs)
            w1 = tl.load(w1_at, mask=w1_there, other=0.0)
            tl.store(w1_at, w1 - lr * tl.dot(tl.trans(d1), x, input_precision=PRECISION), mask=w1_there)
        tl.debug_barrier()  # and is written before the next step reads it

    tl.store(w2_at, w2, mask=w2_there)
    tl.store(w3_at, w3, mask=w3_there)
    tl.store(loss_ptr, tl.load(loss_ptr) + summed)
