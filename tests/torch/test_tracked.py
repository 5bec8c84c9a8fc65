"""The module of PyTorch against ``nx.track``; run by ``make test-torch``."""

import copy
import subprocess
import sys

import numpy as np
import pytest
from tests.support.compare import assert_same
from tests.support.filtering import SEQUENCES, assert_follows
from tests.support.tracked import BETA, KINDS, ROWS, STEPS, TOLERANCE, expected_of, steps_of

torch = pytest.importorskip("torch")

from tests.torch import two_processes  # noqa: E402

import nestax.parts.gains as gains_of_jax  # noqa: E402
import nestax.torch.gains as gains  # noqa: E402
from nestax.torch import Tracked  # noqa: E402


def tensor(x, **options):
    return None if x is None else torch.tensor(x, **options)


def made(name, dtype="float64"):
    return Tracked(**KINDS[name].made_with, dtype=getattr(torch, dtype))


def belief_of(state) -> np.ndarray:
    """The beliefs of the one array that is tracked, in the order of the buffer."""
    b = state.belief
    parts = (b.error, b.spread, b.change, b.joint, b.drift, b.gain)
    return np.concatenate([np.asarray(x) for x in parts], axis=-1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", KINDS)
def test_fifty_steps(name, dtype):
    tracked = made(name, dtype)
    for now, expected in zip(steps_of(name, dtype), expected_of(name, dtype), strict=True):
        g = tensor(now.g, requires_grad=True)
        u = tracked(g, tensor(now.index), tensor(now.previous))
        assert str(u.dtype) == f"torch.{dtype}"
        assert_same(u.detach(), expected.u, TOLERANCE[dtype])
        u.square().sum().backward()
        draws = now.g.shape[u.ndim - len(KINDS[name].shape)] if tracked.gain else 1
        slope = 2 * expected.u * (np.exp(now.g - expected.u) if tracked.log else 1)
        whole = slope if draws == 1 else np.expand_dims(slope, u.ndim - len(KINDS[name].shape))
        assert_same(g.grad, np.broadcast_to(whole / draws, now.g.shape), 10 * TOLERANCE[dtype])
    assert_same(tracked.value, expected.state.value, TOLERANCE[dtype])
    if tracked.gain:
        assert_same(tracked.count, expected.state.count)
        assert_same(tracked.belief, belief_of(expected.state), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SEQUENCES)
def test_the_sequences_of_the_gains(name, dtype):
    """The laws that ``nestax.parts.gains`` follows, as two rows of a table at once."""
    new, old = (torch.tensor(np.stack([x, x], 1), dtype=dtype) for x in SEQUENCES[name])
    tracked, belief = new[0].mean(1), gains.first_belief(new[0])
    found = [(tracked, belief)]
    for t in range(1, len(new)):
        count = torch.full((2,), t)
        tracked, belief = gains.follow(new[t], old[t], tracked, belief, count)
        found.append((tracked, belief))
    for row in range(2):
        numbers = [(theta[row].numpy(), told[row].numpy()) for theta, told in found]
        assert_follows(name, numbers, single=dtype == torch.float32)


@pytest.mark.parametrize("name", ["SPREAD_RATE", "RATE", "LONGEST", "CORRELATED", "PROPORTION"])
def test_constants_that_count_only_in_longer_runs(name):
    assert getattr(gains, name) == getattr(gains_of_jax, name)


@pytest.mark.parametrize("name", KINDS)
def test_saved_and_loaded_in_the_middle_it_is_the_same(name, tmp_path):
    tracked = made(name)
    steps = [[tensor(x) for x in now] for now in steps_of(name, "float64")]
    for t, now in enumerate(steps):
        if t == STEPS // 2:
            torch.save(tracked.state_dict(), tmp_path / "run.pt")
        u = tracked(*now)
    again = made(name)
    again.load_state_dict(torch.load(tmp_path / "run.pt", weights_only=True))
    for now in steps[STEPS // 2 :]:
        u_again = again(*now)
    assert torch.equal(u, u_again)
    assert all(torch.equal(a, b) for a, b in zip(tracked.buffers(), again.buffers(), strict=True))


@pytest.mark.parametrize("name", KINDS)
def test_compiled_whole(name):
    tracked = made(name)
    torch._dynamo.reset()
    compiled = torch.compile(copy.deepcopy(tracked), fullgraph=True, backend="aot_eager")
    for now in steps_of(name, "float64")[:3]:
        g, g_too = tensor(now.g, requires_grad=True), tensor(now.g, requires_grad=True)
        u = tracked(g, tensor(now.index), tensor(now.previous))
        u_too = compiled(g_too, tensor(now.index), tensor(now.previous))
        assert_same(u_too.detach(), u.detach())
        u.sum().backward()
        u_too.sum().backward()
        assert_same(g_too.grad, g.grad)


def test_what_bias_is_left():
    """g = ξw, ξ = 1 ± σ with equal chances, f(u) = u²/2, a memory that is right: mean gradient."""
    sigma = 0.5
    for settings, expected in [
        ({"beta": 1.0}, 1 + sigma**2),
        ({"beta": BETA}, 1 + BETA * sigma**2),
        ({"beta": BETA, "lagged": True}, 1.0),
    ]:
        grads = []
        for xi in (1 - sigma, 1 + sigma):
            w = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
            tracked = Tracked(**settings, dtype=torch.float64)
            tracked(w.detach())
            (tracked(xi * w) ** 2 / 2).backward()
            grads.append(w.grad)
        assert_same(np.mean(grads), expected * 0.7)


def test_in_eval_mode_nothing_is_remembered():
    tracked = Tracked(beta=BETA)
    tracked(torch.tensor(1.0))
    before = copy.deepcopy(tracked.state_dict())
    tracked.eval()
    assert tracked(torch.tensor(5.0)) == 5
    assert all(torch.equal(a, before[name]) for name, a in tracked.state_dict().items())
    tracked.train()
    assert_same(tracked(torch.tensor(5.0)), 1 + BETA * 4, 1e-6)
    auto = Tracked(gain="auto", n=2).eval()
    assert_same(auto(torch.tensor([[1.0, 3.0]]), torch.tensor([0])), [2.0])


def test_gradients_accumulated_over_batches():
    """Every batch moves the memory; the second of a step, at the same weights, is a moving average."""
    tracked = Tracked(beta=BETA)
    a, b, c, c_old, d = (torch.tensor(x) for x in (1.0, 2.0, 3.0, 2.5, 4.0))
    w = torch.ones((), requires_grad=True)
    for g, previous in [(a, a), (b, b), (c, c_old), (d, d)]:
        (tracked(w * g, previous=previous) / 2).backward()
    u = (1 - BETA) * a + BETA * b
    u = c + (1 - BETA) * (u - c_old)
    u = (1 - BETA) * u + BETA * d
    assert_same(tracked.value, u, 1e-6)
    assert_same(w.grad, (a + b + c + d) / 2)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_precision_is_remembered_in_single(half):
    """0.001 of 1 is less than half precision can add to 1."""
    tracked = torch.nn.Sequential(torch.nn.Linear(1, 1), Tracked(beta=0.001)).to(half)[1]
    tracked(torch.ones((), dtype=half))
    for _ in range(100):
        u = tracked(torch.zeros((), dtype=half))
    assert u.dtype == tracked.value.dtype == torch.float32
    assert_same(u, 0.999**100, 1e-5)
    g = torch.ones((), dtype=half, requires_grad=True)
    tracked(g).backward()
    assert g.grad == 1
    assert Tracked(beta=BETA, dtype=half).value.dtype == torch.float32
    assert Tracked(gain="auto").to(half).belief.dtype == torch.float32
    assert Tracked(beta=BETA).double().value.dtype == torch.float64


def test_a_row_that_is_not_finite_is_left_out_of_the_memory():
    tracked = Tracked(n=3, beta=BETA)
    rows = torch.arange(3)
    tracked(torch.ones(3), rows)
    with pytest.warns(UserWarning, match="1 of 3 values to track are not finite and are left out"):
        u = tracked(torch.tensor([2.0, torch.nan, 2.0]), rows)
    assert_same(tracked.value, [1.2, 1.0, 1.2], 1e-6)
    assert tracked.left_out == 1
    assert u.isfinite().tolist() == [True, False, True]


TABLE = lambda: Tracked(n=5, beta=BETA)
TWO = torch.ones(2)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Tracked(), "either beta=, a number in .0, 1., or gain='auto'"),
        (lambda: Tracked(beta=0.1, gain="auto"), "either beta="),
        (lambda: Tracked(gain="best"), "or gain='auto'"),
        (lambda: Tracked(beta=0), "beta must be a number in .0, 1.; got 0"),
        (lambda: Tracked(n=0, beta=BETA), "n must be a whole number of at least 1; got 0"),
        (lambda: TABLE()(TWO, [3, 5]), "index 5 lies outside the 5 rows of the memory, 0 to 4"),
        (lambda: TABLE()(TWO, torch.tensor([-1, 0])), "index -1 lies outside"),
        (lambda: TABLE()(TWO, [2, 2]), "index 2 occurs 2 times in one batch: a row moves once a step"),
        (lambda: TABLE()(torch.ones(6), range(6)), "index 5 lies outside"),
        (lambda: TABLE()(TWO, [0.0, 1.0]), "index must be a vector of whole numbers"),
        (lambda: TABLE()(TWO), "index goes with a table"),
        (lambda: Tracked(beta=BETA)(TWO[0], [0]), "index goes with a table"),
        (lambda: TABLE()(torch.ones(3), [0, 1]), "g has 3 rows and index 2 numbers: one for every row"),
        (lambda: TABLE()(torch.ones(2, 3), [0, 1]), "give g that shape after an axis of rows"),
        (lambda: TABLE()(torch.ones(0), torch.zeros(0, dtype=torch.int64)), "index is empty"),
        (lambda: Tracked(n=True, beta=BETA), "n must be a whole number of at least 1; got True"),
        (lambda: Tracked(beta="auto"), "beta must be a number in .0, 1.; got 'auto'"),
        (lambda: Tracked(beta=BETA)(1.0), "g must be a tensor, with the derivative .* got float"),
        (lambda: Tracked(beta=BETA)(TWO[0], previous=1.0), "previous must be a tensor, .* got float"),
        (
            lambda: Tracked(shape=(2,), beta=BETA, project=torch.sum)(TWO),
            r"project must return what it is given.*float32 \(\) of torch.float32 \(2,\)",
        ),
        (lambda: Tracked(beta=BETA)(TWO), r"g is \(2,\) and one tracked value \(\)"),
        (lambda: Tracked(beta=BETA)(TWO[0].double()), "g is torch.float64 and the memory torch.float32"),
        (lambda: Tracked(beta=BETA)(TWO[0].to("meta")), "g is on meta and the memory on cpu: move"),
        (lambda: Tracked(beta=BETA)(TWO[0], previous=TWO), r"previous is \(2,\) and g \(\)"),
        (lambda: Tracked(gain="auto", log=True), "log=True is a moving average"),
        (lambda: Tracked(beta=BETA, log=True)(TWO[0], previous=TWO[0]), "log=True is a moving average"),
        (lambda: Tracked(gain="auto")(TWO), "pass previous=, g of the same draws"),
        (lambda: Tracked(gain="auto")(TWO[:1], previous=TWO[:1]), "one draw has none"),
        (lambda: Tracked(gain="auto")(TWO[0], previous=TWO[0]), "after an axis of draws"),
    ],
)
def test_one_sentence_each(call, sentence):
    with pytest.raises(ValueError, match=sentence) as told:
        call()
    assert "\n" not in str(told.value)


def test_an_index_below_zero_does_not_count_from_the_end_in_compiled_code():
    tracked = TABLE()
    torch._dynamo.reset()
    compiled = torch.compile(tracked, backend="aot_eager")
    with pytest.raises((IndexError, RuntimeError), match=r"out of (bounds|range)"):
        compiled(TWO, torch.tensor([0, -1]))


def test_the_warning_is_told_where_the_module_is_called():
    with pytest.warns(UserWarning, match="not finite") as told:
        Tracked(beta=BETA)(torch.tensor(torch.nan))
    assert told[0].filename == __file__


def test_the_number_of_rows_may_be_one_of_numpy():
    assert len(Tracked(np.int64(4), beta=BETA).value) == 4


def test_it_imports_no_jax():
    code = "import sys, nestax.torch; print({'jax', 'equinox', 'optax'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_two_processes_keep_one_memory(tmp_path):
    """Each process with half of the batch: memories and weights are those of one with all of it."""
    command = [sys.executable, two_processes.__file__, str(tmp_path)]
    running = [subprocess.Popen([*command, str(rank)]) for rank in range(2)]
    assert [process.wait(timeout=120) for process in running] == [0, 0]
    one, other = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert one.pop("same row").tolist() == [2, np.inf]  # the last process counts
    alone = two_processes.run(lambda model: model, 0, 1)
    assert one.keys() == alone.keys()
    for name, together in one.items():
        assert_same(together, alone[name])


def test_the_loaders_index_may_be_a_list_or_an_array():
    tracked = Tracked(n=ROWS, beta=BETA)
    nothing = [np.inf] * ROWS
    for index in ([1, 2], np.array([3, 4]), torch.tensor([5, 6], dtype=torch.uint8)):
        tracked(TWO, index)
        nothing[index[0]] = nothing[index[1]] = 1
        assert tracked.value.tolist() == nothing


@pytest.mark.parametrize(
    ("rows", "dtype"), [(256, "uint8"), (200, "int8"), (40_000, "int16"), (65_536, "uint16")]
)
@pytest.mark.parametrize("training", [True, False])
def test_an_index_may_be_narrower_than_the_number_of_rows(rows, dtype, training):
    index = np.asarray([0, min(rows - 1, np.iinfo(dtype).max)], dtype)
    tracked = Tracked(rows, beta=BETA).train(training)
    assert tracked(TWO, index).tolist() == [1, 1]
    assert tracked.value[index.astype(int)].tolist() == ([1, 1] if training else [np.inf, np.inf])


@pytest.mark.parametrize("gain", [None, "auto"])
def test_a_first_value_that_is_not_finite_is_no_first_value(gain):
    tracked = Tracked(n=2, gain=gain, beta=None if gain else BETA)
    g = torch.ones(2, 2) if gain else torch.ones(2)
    bad = g.clone()
    bad[1] = torch.nan
    with pytest.warns(UserWarning, match="1 of 2 values to track"):
        tracked(bad, [0, 1], g if gain else None)
    u = tracked(5 * g, [0, 1], g if gain else None)
    assert u[1] == 5
    if gain:
        assert tracked.count.tolist() == [2, 1]
    else:
        assert_same(u[0], 1 + BETA * 4, 1e-6)


def test_a_row_of_a_table_takes_no_more_than_its_value():
    n = 1000
    size = lambda tracked: sum(x.nbytes for x in tracked.buffers()) - tracked.left_out.nbytes
    assert size(Tracked(n, beta=BETA)) == 4 * n
    assert size(Tracked(n, gain="auto")) == 32 * n


def test_where_nothing_is_remembered_yet_previous_does_not_count():
    tracked = Tracked(beta=BETA)
    assert tracked(torch.tensor(2.0), previous=torch.tensor(torch.nan)) == 2
    assert tracked.value == 2
