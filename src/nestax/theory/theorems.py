"""Constants and schedules of the theorems of Jiang et al., ICML 2022, with its errata applied.

symbol        here                      meaning
K             levels                    number of levels
L_f, L_J      L_f, L_J                  Lipschitz constants of every f_i and of every Jacobian
ℒ_f, ℒ_J      mean_L_f, mean_L_J        the same in mean square, over the draws
σ_f², σ_J²    sigma_f², sigma_J²        variance of one drawn value, of one drawn Jacobian
L_F           Constants.smoothness      smoothness of F
η_t, β_t      Schedules.lr, .beta       step length and forgetting rate of iteration t
Δ_F           gap                       F(w_1) − F*, or a bound on it

Which count is which t. Iteration t of the paper holds w_t, makes its estimate with β_t = c·η_{t−1}²
(t ≥ 2; iteration 1 just draws), and steps to w_{t+1} with η_t. In nestax that step is the step rule's
count t − 1, and update number n = 1, 2, … of the estimator belongs to iteration n + 1. Hence

    lr(count) = η_{count+1}   for count = 0, 1, …    beta(n) = β_{n+1} = c·η_n²   for n = 1, 2, …

so that ``optax.sgd(s.lr)`` and ``nx.SMVR(beta=s.beta)`` together are the paper's run. A run of T
iterations that returns w_τ, τ uniform on 1..T, is ``nx.minimize(..., steps=T, output="random")``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from nestax.errors import SettingError, check_count, check_setting, choose, is_traced

Count = Int[Array, ""] | int


@dataclass(frozen=True)
class Constants:
    """What the theorems know about a problem.

    Args:
        levels: K ≥ 1.
        L_f: Lipschitz constant of every level, positive.
        L_J: Lipschitz constant of every Jacobian, at least 0.
        sigma_f, sigma_J: standard deviations of one drawn value and of one drawn Jacobian (Frobenius
            norm), at least 0. With batches of b draws they shrink by √b.
        mean_L_f: ℒ_f with E‖f_i(x;ξ) − f_i(y;ξ)‖² ≤ ℒ_f²‖x − y‖²; None means L_f. Never below L_f, by
            Jensen's inequality.
        mean_L_J: ℒ_J, the same for Jacobians; None means L_J.
    """

    levels: int
    L_f: float
    L_J: float
    sigma_f: float
    sigma_J: float  # noqa: N815
    mean_L_f: Any = None  # noqa: N815
    mean_L_J: Any = None  # noqa: N815

    def __post_init__(self):
        check_count("levels", self.levels)

        def keep(name: str, value: Any, allowed: str, test: Any) -> None:
            object.__setattr__(self, name, _check_number(name, value, allowed, test))

        keep("L_f", self.L_f, "positive and finite", lambda x: (x > 0) & (x < math.inf))
        for name in ("L_J", "sigma_f", "sigma_J"):
            value = getattr(self, name)
            keep(name, value, "at least 0 and finite", lambda x: (x >= 0) & (x < math.inf))
        for name in ("L_f", "L_J"):
            least = getattr(self, name)
            given = getattr(self, f"mean_{name}")
            given = least if given is None else given
            allowed = f"finite and at least {name} = {least:g}, which it bounds by Jensen's inequality"
            keep(f"mean_{name}", given, allowed, lambda x, least=least: (x >= least) & (x < math.inf))

    @property
    def smoothness(self) -> float:
        """L_F = L_f^{K−1} L_J (1 + L_f + … + L_f^{K−1}), with which ∇F is Lipschitz."""
        return self.L_f ** (self.levels - 1) * self.L_J * _geometric(self.L_f, self.levels)

    @property
    def C(self) -> tuple[float, ...]:
        """C_1, …, C_{K−1} of Lemma 9: what an error of value i does to the gradient.

        C_i = L_f^{K−1} L_J (1 + L_f + … + L_f^{K−i−1}). The paper's sum starts at L_f, which would make
        C_{K−1} zero; its proof starts at 1, as here (erratum E1). None exceeds L_F.
        """
        first = self.L_f ** (self.levels - 1) * self.L_J
        return tuple(first * _geometric(self.L_f, self.levels - i) for i in range(1, self.levels))

    @property
    def L_1(self) -> float:
        """The constant behind c and a of Theorem 1 and behind the stages of Lemma 222.

            L_1 = max{1, K L_f^{2(K−1)}, K L_F², 2K(σ_J² + σ_f²),
                      2(ℒ_J² + ℒ_f²)(1 + 2K + 2Kσ_f²) Σ_{i=1}^K (2ℒ_f²)^{i−1}}

        This is the appendix's form (E2) with the mean-squared constants that its proof multiplies by,
        where the paper prints L_J² + L_f² (E3).
        """
        return _largest("L_1", lambda: _terms(self, 1.0, 1.0))


@dataclass(frozen=True)
class Schedules:
    """Two schedules that belong together: lr(count) = η_{count+1} and beta(n) = β_{n+1} = c·η_n².

    ``lr`` is an Optax schedule, and both are settings of nestax; c and a are the numbers in them.
    """

    lr: Callable[[Count], Array]
    beta: Callable[[Count], Array]
    c: float
    a: float


@dataclass(frozen=True)
class Stage:
    """A segment of ``steps`` iterations with constant learning and forgetting rate."""

    steps: int
    lr: float
    beta: float


@dataclass(frozen=True)
class ConstantSchedule:
    """One learning and forgetting rate for the whole run, and how many draws it starts from."""

    steps: int
    lr: float
    beta: float
    init_batch_size: int


@dataclass(frozen=True)
class Budget:
    """Iterations, and draws over all levels at one draw per level and iteration."""

    steps: int
    samples: int


def theorem_1(constants: Constants, *, c: float | None = None, a: float | None = None) -> Schedules:
    """SMVR on smooth non-convex F: η_t = (a + t)^{−1/3} and β_{t+1} = c·η_t².

    With c = 10 L_1² and a = (20 L_1³)^{3/2}, E‖∇F(w_τ)‖ ≤ ε takes Õ(ε⁻³) iterations. The paper says
    O(ε⁻³); its bound holds ln(T + 1), see ``theorem_1_bound`` (E5). Its η_0, which iteration 1 would
    need (E6), appears in that bound only, as a^{−1/3}.

    Args:
        constants: of the problem.
        c: positive; None means 10 L_1². Another number leaves the shape and gives up the guarantee.
        a: at least 2, as the proof needs; None means (20 L_1³)^{3/2}. The same holds.

    Two conditions are checked in any case. η_1 ≤ 1/(2 L_F) is what the descent lemma asks for, and
    β_2 ≤ 1 makes the trackers averages. The paper's own c and a always meet both: β_2 ≤ 1/(2 L_1).
    """
    L_1 = constants.L_1
    L_F = constants.smoothness
    c = 10 * L_1**2 if c is None else c
    a = _offset(L_1) if a is None else a
    c = _check_number("c", c, "positive", lambda x: x > 0)
    a = _check_number("a", a, "at least 2, as the proof of Theorem 1 needs", lambda x: x >= 2)
    eta_1 = (a + 1) ** (-1 / 3)
    if 2 * L_F * eta_1 > 1:
        raise SettingError(
            f"Theorem 1 needs eta_1 <= 1/(2 L_F) = {1 / (2 * L_F):.4g}, and eta_1 = (a + 1)^(-1/3) is "
            f"{eta_1:.4g}: raise a to {math.ceil((2 * L_F) ** 3)}, or leave it out."
        )
    if c * eta_1**2 > 1:
        raise SettingError(
            f"Theorem 1 needs beta_2 <= 1, and beta_2 = c*eta_1^2 is {c * eta_1**2:.4g}: lower c below "
            f"{eta_1**-2:.4g}, raise a, or leave both out."
        )
    return _schedules(c, a)


def theorem_1_bound(constants: Constants, steps: int, gap: float) -> float:
    """Computes the bound on E‖∇F(w_τ)‖ after T iterations that the proof of Theorem 1 ends with.

        √M·(a + T)^{1/6}/√T,   M = 2Δ_F + 2K(σ_f² + σ_J²)/(c_0 η_0) + 100 L_1⁴ ln(T + 1),

    c_0 = 4 L_1, η_0 = a^{−1/3}. Everything in it is explicit; only the paper's last step, to T^{−1/3},
    is of order only, and drops the logarithm. It falls as T grows. The norm of ∇F never exceeds L_f^K,
    so that a bound above that says nothing.
    """
    check_count("steps", steps)
    gap = _check_gap(gap)
    L_1 = constants.L_1
    a = _offset(constants.L_1)
    start = constants.levels * (constants.sigma_f**2 + constants.sigma_J**2)
    M = 2 * gap + 2 * start * a ** (1 / 3) / (4 * L_1) + 100 * L_1**4 * math.log(steps + 1)
    return math.sqrt(M / steps) * (a + steps) ** (1 / 6)


def constant_schedule(horizon: int, constants: Constants | None = None) -> ConstantSchedule:
    """η = T^{−1/3} and β = T^{−2/3} over T steps, from a first batch of T^{1/3} draws.

    Without the logarithm of Theorem 1, but of order only: no constant of the problem is in it. The
    first estimates then cost σ²/(η²T), which the larger first batch makes up for (E5).

    Args:
        horizon: T ≥ 1.
        constants: if given, η ≤ 1/(2 L_F) is checked.
    """
    horizon = check_count("horizon", horizon)
    lr = horizon ** (-1 / 3)
    if constants is not None and (2 * constants.smoothness) ** 3 > horizon:
        L_F = constants.smoothness
        raise SettingError(
            f"eta = T^(-1/3) = {lr:.4g} must be at most 1/(2 L_F) = {1 / (2 * L_F):.4g}: raise the "
            f"horizon to {math.ceil((2 * L_F) ** 3)}."
        )
    return ConstantSchedule(horizon, lr, lr**2, _least(lambda size: size**3 >= horizon))


def lemma_222(constants: Constants, mu: float, eps: float, gap: float) -> list[Stage]:
    """Stage-wise SMVR under the PL condition 2μ(F(w) − F*) ≤ ‖∇F(w)‖²: E F(w_S) − F* ≤ ε.

        c = 16 L_1²,  L_2 = 64 L_1²,  ε_1 = 8 L_1/μ,  ε_s = ε_1/2^{s−1},  S = ⌈log2(2ε_1/ε)⌉
        β_1 = 1/(2 L_1),  T_1 = max{4 L_1 K(σ_f² + σ_J²), 2√(2 L_1)·Δ_F}
        β_s = μ ε_{s−1}/L_2,  T_s = max{4 L_2^{3/2}/(μ ε_{s−1}), 4 L_2/(μ^{3/2} √ε_{s−1})},  s ≥ 2
        η_s = √(β_s/c)

    A stage takes over w_τ and the trackers of the stage before, τ uniform on 1..T_s, and draws nothing
    at its start. Written out, β_s = 2^{−(s−2)}/(8 L_1) for s ≥ 2, whatever μ is, and T_s doubles.

    Args:
        constants: of the problem.
        mu: μ > 0, of the PL condition.
        eps: ε > 0, at most μ. The lemma holds beyond that, but the O(1/(με)) of Theorem 2 does not:
            the second term of T_s takes over (E12).
        gap: Δ_F ≥ 0, at most L_f^{2K}/(2μ). No gradient is longer than L_f^K, so that the PL condition
            bounds F − F* by this wherever both hold; on all of R^d they hold for constant F only (E26).
            The constants are those of a region that holds the iterates.
    """
    eps, gap = _check_target(eps, gap)
    mu = _check_number("mu", mu, "positive", lambda x: x > 0)
    most = constants.L_f ** (2 * constants.levels) / (2 * mu)
    if gap > most:
        raise SettingError(
            f"no F has these constants: where no gradient is longer than L_f^K, the PL condition keeps "
            f"F - F* below L_f^(2K)/(2 mu) = {most:.4g}, and gap is {gap:g}: give the L_f of a region "
            f"that holds the iterates, or lower gap to {most:.4g} if it is only a bound."
        )
    if mu < eps:
        raise SettingError(
            f"Theorem 2 needs mu >= eps, and mu = {mu:g} is less than eps = {eps:g}: lower eps to "
            f"{mu:g}, or use theorem_3 if F is convex."
        )
    return _stages(constants, mu, eps, gap)


def theorem_3(constants: Constants, eps: float, D: float, gap: float) -> tuple[float, list[Stage]]:
    """Stage-wise SMVR on convex F: the μ of a regulariser, and the stages for F with it.

    F(w) + (μ/2)‖w − w_1‖² with μ = ε/D² is μ-strongly convex. Solved to ε/2 by the stages of Lemma 222,
    it gives E F(w_S) − F* ≤ ε/2 + (μ/2)‖w* − w_1‖² ≤ ε in O(D²/ε²) iterations, or O(D³/ε²) for large D.
    Pass the regulariser as ``Problem(penalty=...)``: it is exact and adds no error to the estimates.
    It is no part of the chain, so that L_f need not bound its slope, and E26 does not apply.

    The paper has ‖w*‖ ≤ D in the statement and ‖w*‖² ≤ D in the proof, and centres at 0; here D bounds
    the distance from the start (E11). μ ≥ ε/2 is not asked for, since the lemma does not need it.

    Args:
        constants: of F, without the regulariser.
        eps: ε > 0.
        D: D > 0, at least ‖w* − w_1‖ for some minimiser w*.
        gap: Δ_F ≥ 0, of F.

    The regularised objective is (L_F + μ)-smooth. Where the first stage is too long a step for that,
    which needs a large μ, it is refused.
    """
    eps, gap = _check_target(eps, gap)
    D = _check_number("D", D, "positive", lambda x: x > 0)
    mu = eps / D**2
    stages = _stages(constants, mu, eps / 2, gap)
    most = 1 / (2 * stages[0].lr) - constants.smoothness
    if mu > most:
        raise SettingError(
            f"the regulariser mu = eps/D^2 = {mu:.4g} makes the objective (L_F + mu)-smooth, and lr = "
            f"{stages[0].lr:.4g} of the first stage needs mu <= {most:.4g}: lower eps below "
            f"{most * D**2:.4g}, or raise D."
        )
    return mu, stages


def halving(steps: int, lr: float, beta: float, stages: int) -> list[Stage]:
    """Stages as one uses them: per stage, half the beta, lr/√2 and twice the steps.

    That is what Lemma 222 does from its second stage on, from a start that is chosen by hand: β_s =
    β_1/2^{s−1}, η_s = η_1/2^{(s−1)/2}, T_s = T_1·2^{s−1}.

    Args:
        steps: of the first stage, at least 1.
        lr: of the first stage, positive.
        beta: of the first stage, in (0, 1].
        stages: number of stages, at least 1.
    """
    check_count("steps", steps)
    check_count("stages", stages)
    lr = _check_number("lr", lr, "positive", lambda x: x > 0)
    beta = _check_number("beta", beta, "in (0, 1]", lambda x: (x > 0) & (x <= 1))
    return [Stage(int(steps) * 2**s, lr / 2 ** (s / 2), beta / 2**s) for s in range(stages)]


def L_3(constants: Constants, c_l: float, c_u: float) -> float:
    """What replaces L_1 where steps are rescaled elementwise by factors between c_l and c_u.

        L_3 = max{1, c_u K L_f^{2(K−1)}, c_u K L_F², 2K(σ_J² + σ_f²),
                  2(1 + max(1, c_u²)/c_l)(ℒ_J² + ℒ_f²)(1 + 2K + 2Kσ_f²) Σ_{i=1}^K (2ℒ_f²)^{i−1}}

    The paper prints L_f² + L_f² for ℒ_J² + ℒ_f² (E4), and 1/c_l for max(1, c_u²)/c_l. Its proof moves
    the weights by up to η c_u‖v‖ and pays with η c_l‖v‖²/4, for which the printed term is too small
    once c_u² exceeds (1 + c_l)(1 + 2K + 2Kσ_f²); for c_u ≤ 1 the two agree.
    """
    c_l = _check_number("c_l", c_l, "positive", lambda x: x > 0)
    c_u = _check_number("c_u", c_u, f"at least c_l = {c_l:g}", lambda x: x >= c_l)
    return _largest("L_3", lambda: _terms(constants, c_u, 1 + max(1, c_u**2) / c_l))


def adaptive(constants: Constants, c_l: float, c_u: float) -> Schedules:
    """Theorem 4, SMVR with ``nestax.steps``: the schedules of Theorem 1 with L_3 and a cap.

        η_t = min{(a + t)^{−1/3}, c_l/(2 c_u² L_F)},  β_{t+1} = c·η_t²,
        c = 10 L_3²,  a = (20 L_3³)^{3/2}

    The cap is what the descent lemma asks for; the paper's L_3 does not imply it (E4).

    Args:
        constants: of the problem.
        c_l, c_u: 0 < c_l ≤ c_u with c_l ≤ 1/(√h + δ) ≤ c_u in every entry (the paper writes this for
            the largest entry only, E22). As ‖v_t‖ ≤ L_f^K, 1/(δ + L_f^K) and 1/δ serve.
    """
    L = L_3(constants, c_l, c_u)
    L_F = constants.smoothness
    cap = c_l / (2 * c_u**2 * L_F) if L_F > 0 else math.inf
    return _schedules(10 * L**2, _offset(L), cap)


def samples_needed(
    constants: Constants,
    eps: float,
    *,
    gap: float,
    criterion: str = "stationary",
    mu: float | None = None,
    D: float | None = None,
) -> Budget:
    """Returns how many iterations and draws the theorems ask for before they promise accuracy ε.

    Explicit, to the last constant that the paper gives:

    * "stationary", E‖∇F(w_τ)‖ ≤ ε: the least T with ``theorem_1_bound`` ≤ ε (to rounding).
    * "pl", E F(w_S) − F* ≤ ε: T_1 + … + T_S of ``lemma_222``; needs ``mu``.
    * "convex", the same for convex F: T_1 + … + T_S of ``theorem_3``; needs ``D``.

    The orders Õ(ε⁻³), O(1/(με)) and O(D²/ε²) are what the paper condenses these into. They are upper
    bounds, for the worst problem with these constants. A stage, or a run, stops at a random τ, so half
    of it is the mean. One draw per level and iteration is counted; later stages draw nothing at their
    start.

    Args:
        constants: of the problem.
        eps: ε > 0.
        gap: Δ_F ≥ 0.
        criterion: "stationary", "pl" or "convex".
        mu: μ ≥ ε of the PL condition, with gap ≤ L_f^{2K}/(2μ).
        D: at least the distance from the start to a minimiser.
    """
    choose("criterion", criterion, ("stationary", "pl", "convex"))
    eps, gap = _check_target(eps, gap)
    for name, value, user in (("mu", mu, "pl"), ("D", D, "convex")):
        if (value is None) == (criterion == user):
            verb = "needs" if criterion == user else "does not take"
            raise SettingError(f"criterion {criterion!r} {verb} {name}=; it belongs to {user!r}.")
    if criterion == "stationary":
        steps = _least(lambda T: theorem_1_bound(constants, T, gap) <= eps)
        return Budget(steps, constants.levels * steps)
    if mu is not None:
        stages = lemma_222(constants, mu, eps, gap)
    else:
        assert D is not None
        _, stages = theorem_3(constants, eps, D, gap)
    steps = sum(stage.steps for stage in stages)
    return Budget(steps, constants.levels * (steps - (len(stages) - 1)))


def _terms(constants: Constants, gradient: float, movement: float) -> list[float]:
    """Computes the terms of L_1; L_3 weighs the error of the gradient and the movement of the inputs."""
    K = constants.levels
    noise = constants.sigma_f**2
    mean_squares = constants.mean_L_J**2 + constants.mean_L_f**2
    return [
        1.0,
        gradient * K * constants.L_f ** (2 * (K - 1)),
        gradient * K * constants.smoothness**2,
        2 * K * (constants.sigma_J**2 + noise),
        2
        * movement
        * mean_squares
        * (1 + 2 * K + 2 * K * noise)
        * _geometric(2 * constants.mean_L_f**2, K),
    ]


def _largest(name: str, terms: Callable[[], list[float]]) -> float:
    try:
        largest = float(max(terms()))
        finite = math.isfinite(_offset(largest))
    except OverflowError:  # Python raises for powers, and returns infinity for products
        largest = math.inf
        finite = False
    if not finite:
        raise SettingError(
            f"{name} of these constants is so large that the theorem's numbers overflow: scale the "
            "levels so that their Lipschitz constants are nearer to 1."
        )
    return largest


def _offset(L: float) -> float:
    """a = (20 L³)^{3/2}."""
    return (20.0 * L**3) ** 1.5


def _geometric(ratio: float, terms: int) -> float:
    return sum(ratio**j for j in range(terms))


def _schedules(c: float, a: float, cap: float = math.inf) -> Schedules:
    # (a + t)^{−1/3} is written a^{−1/3}(1 + t/a)^{−1/3}: in single precision a itself may overflow.
    first = a ** (-1 / 3)
    slope = 1 / a
    beta_first = c * first**2
    beta_cap = c * cap**2

    def lr(count: Count) -> Array:
        return jnp.minimum(first * (1 + slope * (jnp.asarray(count) + 1)) ** (-1 / 3), cap)

    def beta(count: Count) -> Array:
        return jnp.minimum(beta_first * (1 + slope * jnp.asarray(count)) ** (-2 / 3), beta_cap)

    return Schedules(lr, beta, c, a)


def _stages(constants: Constants, mu: float, eps: float, gap: float) -> list[Stage]:
    """Lemma 222, for any μ > 0."""
    L_1 = constants.L_1
    noise = constants.sigma_f**2 + constants.sigma_J**2
    c = 16 * L_1**2
    L_2 = 64 * L_1**2
    eps_1 = 8 * L_1 / mu
    beta = 1 / (2 * L_1)
    steps = max(4 * L_1 * constants.levels * noise, 2 * math.sqrt(2 * L_1) * gap)
    stages = [Stage(_whole(steps), math.sqrt(beta / c), beta)]
    for s in range(2, math.ceil(math.log2(2 * eps_1 / eps)) + 1):
        before = eps_1 / 2 ** (s - 2)  # ε_{s−1}
        beta = mu * before / L_2
        steps = max(4 * L_2**1.5 / (mu * before), 4 * L_2 / (mu**1.5 * math.sqrt(before)))
        stages.append(Stage(_whole(steps), math.sqrt(beta / c), beta))
    return stages


def _whole(steps: float) -> int:
    """At least one step, even without noise and from the optimum."""
    return max(1, math.ceil(steps))


def _least(enough: Callable[[int], bool]) -> int:
    """Computes the least T ≥ 1 with ``enough(T)``, which stays true once it is."""
    high = 1
    while not enough(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _check_number(name: str, value: Any, allowed: str, test: Callable[[Any], Any]) -> float:
    """As ``check_setting``, for what is computed with here: neither None, a schedule nor an array.

    Comes back as a Python float, since single precision would overflow.
    """
    if is_traced(value):
        return value
    if np.ndim(value) or np.asarray(value).dtype.kind not in "fiu":
        raise SettingError(f"{name} must be one number, {allowed}; got {value!r}.")
    check_setting(name, value, allowed, test)
    return float(value)


def _check_target(eps: float, gap: float) -> tuple[float, float]:
    return _check_number("eps", eps, "positive", lambda x: x > 0), _check_gap(gap)


def _check_gap(gap: float) -> float:
    return _check_number("gap", gap, "at least 0, a bound on F(w_1) - F*", lambda x: x >= 0)
