"""mxRec's optimizer on variables of TensorFlow against the same steps on tensors of torch, bit for bit.

    pip install tensorflow-cpu
    PYTHONPATH=src python tests/with_tensorflow/lazy_adam.py

A step of its own in the CI, for TensorFlow is large; the tests run `compare` and `refuses` with a stand-in for the few
functions it takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import anyfuse.compat.mx_rec as mx_rec


class Slices:
    def __init__(self, indices: np.ndarray, values: np.ndarray) -> None:
        self.indices, self.values = torch.from_numpy(indices), torch.from_numpy(values)


def compare(tf: Any, fused: bool) -> int:
    """Steps two tables both ways; AssertionError where a bit differs. Returns the number of steps."""
    random = np.random.default_rng(0)
    shapes = ((40, 8), (7, 3))
    values = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    variables, tensors = [tf.Variable(value) for value in values], [torch.from_numpy(value.copy()) for value in values]
    theirs, mine = (mx_rec.create_hash_optimizer(learning_rate=0.1, use_fusion_optim=fused) for _ in range(2))
    count = tf.Variable(np.int64(0))
    for n in (25, 1, 0, 60):
        ids = [random.integers(-2, rows, n) for rows, _ in shapes]
        gradients = [random.standard_normal((n, dim)).astype(np.float32) for _, dim in shapes]
        slices = [tf.IndexedSlices(gradient, at) for gradient, at in zip(gradients, ids, strict=True)]
        theirs.apply_gradients(zip(slices, variables, strict=True), global_step=count)
        mine.apply_gradients([(Slices(*pair), tensor) for *pair, tensor in zip(ids, gradients, tensors, strict=True)])
        for variable, tensor in zip(variables, tensors, strict=True):
            slots = [(theirs.get_slot(variable, name), mine.get_slot(tensor, name)) for name in ("m", "v")]
            for one, other in ((variable, tensor), *slots):
                np.testing.assert_array_equal(np.asarray(one.numpy()), other.numpy())
    assert int(count.numpy()) == mine.steps
    return mine.steps


def refuses(tf: Any) -> None:
    """What is refused is named, and nothing is written then."""
    optimizer = mx_rec.create_hash_optimizer(use_fusion_optim=True)
    variable = tf.Variable(np.ones((3, 8), np.float32))
    row = np.ones((1, 8), np.float32)
    for gradient, table, error in (
        (np.ones((3, 8), np.float32), variable, NotImplementedError),
        (tf.IndexedSlices(row, np.array([3])), variable, IndexError),
        (tf.IndexedSlices(row[:, :4], np.array([0])), variable, ValueError),
        (tf.IndexedSlices(row, np.array([0])), tf.Variable(np.ones((3, 8))), ValueError),
        (tf.IndexedSlices(row, np.array([0])), "table", TypeError),
    ):
        try:
            optimizer.apply_gradients([(gradient, table)])
        except error as refused:
            assert "accepted" in str(refused)
        else:
            raise AssertionError(f"{error.__name__} was expected")
    np.testing.assert_array_equal(np.asarray(variable.numpy()), np.ones((3, 8), np.float32))


def trains(tf: Any) -> tuple[float, float]:
    """A loop as it is written for TensorFlow, on gradients of a tape. The first loss and the last."""
    random = np.random.default_rng(1)
    table = tf.Variable(random.standard_normal((50, 4)).astype(np.float32))
    wanted = tf.constant(random.standard_normal((50, 4)).astype(np.float32))
    optimizer = mx_rec.create_hash_optimizer(learning_rate=0.1, use_fusion_optim=True)
    losses = []
    for step in range(60):
        ids = tf.constant(random.integers(0, 49, (16, 2)), dtype=tf.int32 if step % 2 else tf.int64)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(table, ids) - tf.gather(wanted, ids)))
        (gradient,) = tape.gradient(loss, [table])
        assert isinstance(gradient, tf.IndexedSlices)
        before = table.numpy()[49].copy()
        optimizer.apply_gradients([(gradient, table)])
        np.testing.assert_array_equal(table.numpy()[49], before)  # no batch names it
        losses.append(float(loss))
    assert losses[-1] < 0.1 * losses[0], losses
    return losses[0], losses[-1]


def refuses_graphs(tf: Any) -> None:
    optimizer = mx_rec.create_hash_optimizer(use_fusion_optim=True)
    variable = tf.Variable(np.ones((3, 8), np.float32))

    @tf.function
    def step() -> None:
        optimizer.apply_gradients([(tf.IndexedSlices(tf.ones((1, 8)), tf.constant([0])), variable)])

    try:
        step()
    except RuntimeError as refused:
        assert "accepted: eager execution" in str(refused)
    else:
        raise AssertionError("a step in a graph was accepted")
    np.testing.assert_array_equal(variable.numpy(), np.ones((3, 8), np.float32))


if __name__ == "__main__":
    import tensorflow

    for way in (True, False):
        print(f"use_fusion_optim={way}: {compare(tensorflow, way)} steps are equal bit for bit")
    refuses(tensorflow)
    refuses_graphs(tensorflow)
    print("TensorFlow {}: loss {:.3f} -> {:.3f}".format(tensorflow.__version__, *trains(tensorflow)))
