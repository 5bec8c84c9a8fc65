"""A network of layers is its formula, and has weights that start well."""

import jax
import numpy as np
import pytest
from tests.support.compare import assert_same

import nestax as nx
from nestax.problems.few_shot.networks import perceptron


def test_a_perceptron_is_its_formula():
    network = perceptron(2, 3, 1)
    first, last = w = network.init(jax.random.key(1))
    assert sum(x.size for x in jax.tree.leaves(w)) == 2 * 3 + 3 + 3 + 1
    first["bias"] += 0.2
    x = np.asarray([0.5, -2.0])
    hidden = np.maximum(x @ np.asarray(first["weight"]) + first["bias"], 0)
    assert_same(network.apply(w, x), hidden @ last["weight"] + last["bias"])
    wide = perceptron(400, 300).init(jax.random.key(2))[0]["weight"]
    assert abs(float(wide.std()) - 1 / 20) < 1e-3


def test_what_is_refused():
    with pytest.raises(nx.SettingError, match=r"the widths of input and output, such as .*; got \(3,\)"):
        perceptron(3)
    with pytest.raises(nx.SettingError, match="width must be a whole number of at least 1; got 0"):
        perceptron(1, 0, 1)
