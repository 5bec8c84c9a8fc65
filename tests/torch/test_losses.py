"""The losses as modules of PyTorch against ``nx.losses``; run by ``make test-torch``."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.compare import assert_same
from tests.support.losses import LOSSES, N, data, steps_of

import nestax as nx

torch = pytest.importorskip("torch")

import nestax.torch as nt  # noqa: E402

BETA = 0.2
as_tensor = lambda x: torch.tensor(np.asarray(x))
TIME, EVENT, LABELS = (as_tensor(x) for x in (data.time, data.event, data.labels))

MODULES = {
    "log_mean_exp": (nt.LogMeanExp, {}, lambda m, h, rows: m(h)),
    "kl_robust": (nt.KLRobust, {"temperature": 0.5}, lambda m, h, rows: m(h)),
    "cvar_robust": (nt.CVaRRobust, {"share": 0.25}, lambda m, h, rows: m(h)),
    "cvar_robust of a table": (
        lambda beta, lagged=False, **options: nt.CVaRRobust(N, share=0.25, **options),
        {},
        lambda m, h, rows: m(h, rows),
    ),
    "donsker_varadhan": (nt.DonskerVaradhan, {}, lambda m, h, rows: m(h, 2 * h)),
    "info_nce": (
        nt.InfoNCE,
        {"n": N, "temperature": 0.7},
        lambda m, h, rows: m(torch.outer(h, h), rows),
    ),
    "average_precision": (nt.AveragePrecision, {"n": N}, lambda m, h, rows: m(h, LABELS[rows], rows)),
}


def test_every_loss_is_here():
    assert MODULES.keys() == LOSSES.keys()


@pytest.mark.parametrize("lagged", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_fifty_steps(name, lagged):
    make, options, call = MODULES[name]
    module = make(beta=BETA, lagged=lagged, dtype=torch.float64, **options)
    state = LOSSES[name].state()

    @jax.jit
    def value_and_grad(h, rows, state):
        loss = lambda h: LOSSES[name].call(h, rows, state, beta=BETA, lagged=lagged)
        return jax.value_and_grad(loss, has_aux=True)(h)

    for scores, rows in steps_of():
        h = torch.tensor(scores, requires_grad=True)
        value = call(module, h, torch.tensor(rows))
        value.backward()
        (expected, state), grad = value_and_grad(jnp.asarray(scores), jnp.asarray(rows), state)
        assert_same(value.detach(), expected)
        assert_same(h.grad, grad)


def cox_pair(ties):
    return nt.Cox(TIME, EVENT, ties=ties, dtype=torch.float64), nx.losses.risk_sets(
        data.time, data.event, ties=ties
    )


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint16"])
@pytest.mark.parametrize("training", [True, False])
def test_the_rows_of_cox_may_be_told_by_narrow_integers(dtype, training):
    h, index = torch.tensor([1.0, 2.0, 3.0]), np.asarray([0, 5, 127])
    narrow, wide = (nt.Cox(np.arange(256.0), np.ones(256)).train(training) for _ in range(2))
    assert torch.equal(narrow(h, index.astype(dtype)), wide(h, index))


@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "bool"])
def test_times_may_be_unsigned(dtype, ties):
    time = np.asarray([0, 1, 1, 0, 1]) if dtype == "bool" else np.asarray([0, 3, 200, 0, 3])
    event, h, rows = [1, 1, 0, 1, 1], torch.arange(5.0), np.arange(5)
    narrow, wide = (nt.Cox(x, event, ties=ties) for x in (time.astype(dtype), time.astype(float)))
    assert torch.equal(narrow(h, rows), wide(h, rows))


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_fifty_steps_of_cox(ties):
    module, state = cox_pair(ties)
    value_and_grad = jax.jit(jax.value_and_grad(nx.losses.cox, has_aux=True))
    for scores, rows in steps_of():
        h = torch.tensor(scores, requires_grad=True)
        value = module(h, torch.tensor(rows))
        value.backward()
        (expected, state), grad = value_and_grad(jnp.asarray(scores), state, jnp.asarray(rows))
        assert_same(value.detach(), expected)
        assert_same(h.grad, grad)


def test_cox_in_eval_mode_and_from_a_state_dict():
    module, state = cox_pair("efron")
    (first, rows), (second, others) = steps_of()[:2]
    module(torch.tensor(first), rows)
    _, state = nx.losses.cox(jnp.asarray(first), state, rows)
    expected, _ = nx.losses.cox(jnp.asarray(second), state, others)
    for _ in range(2):  # nothing is remembered
        assert_same(module.eval()(torch.tensor(second), others), expected)
    again, _ = cox_pair("efron")
    again.load_state_dict(module.state_dict())
    assert_same(again(torch.tensor(second), others), expected)


@pytest.mark.parametrize("name", LOSSES)
def test_in_eval_mode_it_is_the_loss_of_the_batch(name):
    make, options, call = MODULES[name]
    module = make(beta=BETA, dtype=torch.float64, **options)
    scores, rows = steps_of()[0]
    call(module, torch.tensor(scores + 1), torch.tensor(rows))
    value = call(module.eval(), torch.tensor(scores), torch.tensor(rows))
    expected, _ = LOSSES[name].call(jnp.asarray(scores), rows, LOSSES[name].state(), beta=1.0)
    assert_same(value, expected)


def test_training_resumed_in_the_middle_is_the_same(tmp_path):
    """Weights, moments of Adam and memories, with what is saved read into new objects."""
    x = torch.randn(N, 3, generator=torch.Generator().manual_seed(0))

    def made():
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 1)
        parts = [
            model,
            nt.Cox(TIME, EVENT),
            nt.CVaRRobust(N, share=0.5),
            nt.KLRobust(temperature=1.0, beta=BETA),
        ]
        return [*parts, torch.optim.Adam(model.parameters(), lr=0.1)]

    def train(parts, steps):
        model, cox, worst, robust, optimizer = parts
        for _, rows in steps:
            risk = model(x[rows])[:, 0]
            optimizer.zero_grad()
            (cox(risk, rows) + worst(risk**2, rows) + robust(risk**2)).backward()
            optimizer.step()
        return model.weight

    whole = train(made(), steps_of())
    half = made()
    train(half, steps_of()[:25])
    torch.save([part.state_dict() for part in half], tmp_path / "run.pt")
    again = made()
    for part, state in zip(again, torch.load(tmp_path / "run.pt", weights_only=True), strict=True):
        part.load_state_dict(state)
    assert torch.equal(train(again, steps_of()[25:]), whole)


@pytest.mark.parametrize("labels", [2 * LABELS - 1, LABELS > 0, (LABELS > 0).tolist()])
def test_labels_may_be_1_and_minus_1_or_true_and_false(labels):
    loss = lambda labels: nt.AveragePrecision(N, beta=BETA)(torch.arange(float(N)), labels, range(N))
    assert torch.equal(loss(labels), loss(LABELS))


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", LOSSES)
def test_scores_in_half_precision(name, half):
    make, options, call = MODULES[name]
    scores, rows = steps_of()[0]
    for training in (True, False):
        module = make(beta=BETA, **options).train(training)
        h = torch.tensor(scores, dtype=half, requires_grad=True)
        value = call(module.to(half), h, torch.tensor(rows))
        value.backward()
        assert h.grad.dtype == half
        single = make(beta=BETA, **options).train(training)
        exact = call(single, torch.tensor(scores, dtype=torch.float32), torch.tensor(rows))
        assert_same(value.detach().float(), exact, 0.02)


@pytest.mark.parametrize("name", [*LOSSES, "cox"])
def test_compiled_whole(name):
    if name == "cox":
        make, options = lambda **_: cox_pair("efron")[0], {}
        call = lambda module, h, rows: module(h, rows)
    else:
        make, options, call = MODULES[name]
    module, same = (make(beta=BETA, dtype=torch.float64, **options) for _ in range(2))
    torch._dynamo.reset()
    compiled = torch.compile(lambda h, rows: call(same, h, rows), fullgraph=True, backend="aot_eager")
    for scores, rows in steps_of()[:3]:
        h, h_too = (torch.tensor(scores, requires_grad=True) for _ in range(2))
        rows = torch.tensor(rows)
        value, value_too = call(module, h, rows), compiled(h_too, rows)
        assert_same(value_too.detach(), value.detach())
        value.backward()
        value_too.backward()
        assert_same(h_too.grad, h.grad)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: nt.KLRobust(temperature=0, beta=BETA), "temperature must be positive; got 0"),
        (lambda: nt.CVaRRobust(share=0, beta=BETA), "share must be in .0, 1.; got 0"),
        (lambda: nt.CVaRRobust(N, share=0.5, beta=BETA), "leave beta and lagged out"),
        (lambda: nt.Cox(TIME, EVENT, ties="exact"), "ties must be 'efron' or 'breslow'; got 'exact'"),
        (lambda: nt.Cox(TIME, 0 * EVENT), "no row has an event"),
        (lambda: nt.Cox(TIME - 4, EVENT), "time must be finite and at least 0; row"),
        (lambda: nt.Cox(TIME, EVENT + 1), "event must be 1 or 0"),
        (lambda: nt.Cox(TIME[:2], EVENT), r"got \(2,\) and \(12,\)"),
        (lambda: nt.Cox(TIME, EVENT)(torch.ones(2), [3, 3]), "occurs 2 times"),
        (lambda: nt.Cox(TIME, EVENT).eval()(torch.ones(1), [N]), "lies outside the 12 rows"),
        (lambda: nt.Cox(TIME, EVENT)(torch.ones(2, 1), [3, 4]), r"risk is a vector .* got \(2, 1\)"),
        (
            lambda: nt.KLRobust(temperature=1, beta=BETA)(torch.ones(())),
            "losses is a vector .* not their",
        ),
        (lambda: nt.CVaRRobust(N, share=0.5)(torch.ones(2, 1), [0, 1]), "losses is a vector with one"),
        (lambda: nt.DonskerVaradhan(beta=BETA)(torch.ones(2), torch.ones(())), "marginal is a vector"),
        (lambda: nt.LogMeanExp(beta=BETA)(torch.ones(())), "along its last axis; got one number"),
        (
            lambda: nt.InfoNCE(N, temperature=1.0, beta=BETA)(torch.ones(1, 1), [0]),
            "InfoNCE compares .* at least two",
        ),
        (
            lambda: nt.InfoNCE(N, temperature=1.0, beta=BETA)(torch.ones(2), [0, 1]),
            r"similarity has the anchors of a batch as rows .* got \(2,\)",
        ),
        (
            lambda: nt.AveragePrecision(N, beta=BETA)(torch.ones(2), torch.ones(1), [0, 1]),
            r"scores and labels are vectors .* got \(2,\) and \(1,\)",
        ),
        (
            lambda: nt.AveragePrecision(N, beta=BETA)(torch.ones(1), torch.ones(1), [0]),
            "AveragePrecision compares .* at least two",
        ),
    ],
)
def test_one_sentence_each(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
