"""Mixtures of experts equal a NumPy reference that loops over tokens and experts."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from arrays import assert_gradients_close, rngs
from refusals import refuses
from t5x_like import slots
from t5x_like.architectures.design import Design
from t5x_like.nn import params
from t5x_like.nn.block import scalars
from t5x_like.nn.dims import Dropout, subkey
from t5x_like.nn.feed_forward import Experts
from t5x_like.nn.feed_forward.moe import Moe
from t5x_like.nn.layer import Context
from t5x_like.nn.mask import Mask, positions
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.training import jaxpr_flops

B = 4
T = 8
D = 16
F = 32
E = 4
KINDS = {
  "switch": {"top_k": 1, "normalise": False},
  "mixtral": {"top_k": 2},
  "shazeer": {"top_k": 3, "router": "noisy_top_k"},
  "unnormalised": {"top_k": 2, "normalise": False},
}
FULL_CAPACITY = {"dispatch": "capacity", "capacity_factor": float(E)}  # drops nothing


def build_layer(gated=True, dropout_rate=0.0, **options):
  moe = Moe(
    D,
    F,
    nnx.Rngs(params=jax.random.key(5)),
    Experts(experts=E, **options),
    activation=jax.nn.silu,
    gated=gated,
    init=params.normal(0.5),
    out_init=params.normal(0.5),
    dropout=Dropout(dropout_rate),
  )
  if moe.experts.router == "noisy_top_k":  # replace the kernels, which are initialised to zero
    kernels = 0.3 * jax.random.normal(jax.random.key(6), (2, D, E))
    moe = params.with_arrays(
      moe, params.arrays(moe) | {"router/kernel": kernels[0], "router/noise": kernels[1]}
    )
  return moe


def random_tokens(seed=0, rows=B, length=T):
  return jnp.asarray(np.random.default_rng(seed).standard_normal((rows, length, D)), jnp.float32)


def valid_tokens():
  return np.arange(T)[None] < np.array([T, 3, 5, 1])[:, None]


def context(**fields):
  return Context(mask=Mask(positions(T), positions(T), **fields))


@jax.jit
def run(moe, x_BTD, context, key=None):
  y_BTD, aux, _ = moe(x_BTD, context, None, key)
  return y_BTD, scalars(aux)


def silu(x):
  return x / (1 + np.exp(-x))


def reference(moe, x, valid=None):
  """Return (outputs, chosen experts, probabilities, logits, number of dropped choices)."""
  arrays = {name: np.asarray(a, np.float64) for name, a in params.arrays(moe).items()}
  options = moe.experts
  x = np.asarray(x, np.float64)
  k = options.top_k
  rows, length, _ = x.shape
  capacity = length
  if options.dispatch == "capacity":
    capacity = min(length, math.ceil(options.capacity_factor * length * k / E))
  logits = np.einsum("btd,de->bte", x, arrays["router/kernel"])
  probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  chosen = np.argsort(-probs, axis=-1)[..., :k]
  y = np.zeros_like(x)
  dropped = 0
  for b in range(rows):
    load = np.zeros(E, int)
    for j in range(k):
      for t in range(length):
        if valid is not None and not valid[b, t]:
          continue
        e = chosen[b, t, j]
        load[e] += 1
        if load[e] > capacity:
          dropped += 1
          continue
        gate = probs[b, t, e]
        if moe.router.normalise:
          gate /= probs[b, t, chosen[b, t]].sum()
        h = x[b, t] @ arrays["wi"][e]
        if "gate" in arrays:
          h *= silu(x[b, t] @ arrays["gate"][e])
        else:
          h = silu(h)
        y[b, t] += gate * (h @ arrays["wo"][e])
  return y, chosen, probs, logits, dropped


@pytest.mark.parametrize("dispatch", [{}, FULL_CAPACITY], ids=["dropless", "capacity"])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_equal_the_reference(kind, dispatch):
  moe = build_layer(gated=kind != "switch", **KINDS[kind], **dispatch)
  y, aux = run(moe, random_tokens(), context())
  np.testing.assert_allclose(y, reference(moe, random_tokens())[0], rtol=1e-4, atol=1e-4)
  names = ("importance_loss", "load_loss") if kind == "shazeer" else ("balance_loss", "z_loss")
  names += ("violation", "dropped", "violation_weights", "dropped_weights")
  assert aux.keys() == {f"moe_{name}" for name in names}
  assert float(aux["moe_dropped"]) == 0
  load_E = np.bincount(reference(moe, random_tokens())[1].reshape(-1), minlength=E)
  np.testing.assert_allclose(aux["moe_violation"], load_E.max() / load_E.mean() - 1, rtol=1e-5)


@pytest.mark.parametrize("kind", ["switch", "mixtral"])
def test_experts_beyond_their_capacity_drop_later_choices(kind):
  moe = build_layer(**KINDS[kind], dispatch="capacity", capacity_factor=0.6)
  valid = valid_tokens()
  for valid_BT in (None, valid):
    y, aux = run(moe, random_tokens(), context(k_valid=valid_BT))
    expected, *_, dropped = reference(moe, random_tokens(), valid_BT)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    if valid_BT is None:
      assert dropped > 0
    choices = (B * T if valid_BT is None else valid.sum()) * moe.experts.top_k
    np.testing.assert_allclose(aux["moe_dropped"], dropped / choices, rtol=1e-6)


def test_evaluation_uses_eval_capacity_factor():
  """Training, which has a random key, still uses `capacity_factor`."""

  def dropped(key=None, **options):
    moe = build_layer(top_k=1, dispatch="capacity", capacity_factor=0.6, **options)
    return float(run(moe, random_tokens(), context(), key)[1]["moe_dropped"])

  by_training_factor = dropped()
  assert by_training_factor > 0
  assert dropped(jax.random.key(0), eval_capacity_factor=float(E)) == by_training_factor
  assert dropped(eval_capacity_factor=float(E)) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_dispatches_agree_in_values_and_gradients(kind):
  valid_BT = jnp.asarray(valid_tokens())
  moe_context = context(
    q_segments=valid_BT.astype(jnp.int32), k_segments=valid_BT.astype(jnp.int32)
  )
  key = jax.random.key(3) if kind == "shazeer" else None

  def loss(arrays, x, model):
    y, aux, _ = params.with_arrays(model, arrays)(x, moe_context, None, key)
    y = jnp.where(valid_BT[..., None], y, 0.0)
    losses = [value for name, value in scalars(aux).items() if name.endswith("_loss")]
    return jnp.sum(jnp.sin(y)) + sum(losses), y

  def gradients(**dispatch):
    losses = dict(balance_loss=1.0, z_loss=1.0, importance_loss=1.0, load_loss=1.0)
    moe = build_layer(**KINDS[kind], **dispatch, **losses)
    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (_, y), (by_name, by_x) = step(params.arrays(moe), random_tokens(), moe)
    return y, by_name | {"x": by_x}

  y, dropless = gradients()
  capacity_y, capacity = gradients(**FULL_CAPACITY)
  np.testing.assert_allclose(y, capacity_y, atol=1e-5)
  assert_gradients_close(capacity, dropless, rtol=1e-7, atol=1e-5)
  for name, gradient in dropless.items():
    assert np.abs(gradient).max() > 0, name  # also of the router and its noise


@pytest.mark.parametrize("dispatch", [{}, {"dispatch": "capacity", "capacity_factor": 0.6}])
def test_gradients_equal_finite_differences(dispatch):
  """Dispatch and combine have hand-written gradients."""
  moe = build_layer(**KINDS["mixtral"], **dispatch)

  @jax.jit
  def value_and_gradient(x):
    return jax.value_and_grad(lambda x: jnp.sum(jnp.sin(moe(x, context(), None, None)[0])))(x)

  x = random_tokens()
  direction = random_tokens(1)
  step = 1e-3 * direction
  above, _ = value_and_gradient(x + step)
  below, _ = value_and_gradient(x - step)
  _, gradient = value_and_gradient(x)
  np.testing.assert_allclose(jnp.sum(gradient * direction), (above - below) / 2e-3, rtol=2e-2)


# Losses


@pytest.mark.parametrize(
  "kind, where",
  [
    ("switch", "k_valid"),
    ("mixtral", "k_valid"),
    ("mixtral", "q_segments"),
    ("mixtral", "valid"),
    ("switch", "nowhere"),
  ],
)
def test_losses_are_means_over_valid_tokens(kind, where):
  moe = build_layer(**KINDS[kind], balance_loss=0.3, z_loss=0.2)
  valid = jnp.asarray(valid_tokens())
  segments = jnp.asarray(valid, jnp.int32) * 2
  moe_context = {
    "q_segments": context(q_segments=segments, k_segments=segments),
    "valid": Context(mask=context().mask, valid=valid),
    "k_valid": context(k_valid=valid),
    "nowhere": context(),
  }[where]
  valid_BT = np.ones((B, T), bool) if where == "nowhere" else valid_tokens()
  # The values of padding must have no effect.
  x_with_noisy_padding = jnp.where(valid_BT[..., None], random_tokens(), 50.0)
  _, aux = run(moe, x_with_noisy_padding, moe_context)
  _, chosen, probs, logits, _ = reference(moe, random_tokens())
  load_E = np.bincount(chosen[valid_BT].ravel(), minlength=E)
  balance = E * np.sum(load_E / load_E.sum() * probs[valid_BT].mean(0))
  np.testing.assert_allclose(aux["moe_balance_loss"], 0.3 * balance, rtol=1e-5)
  z = np.log(np.exp(logits[valid_BT]).sum(-1))
  np.testing.assert_allclose(aux["moe_z_loss"], 0.2 * np.mean(z**2), rtol=1e-5)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_importance_and_load_losses_follow_their_paper(training):
  """The reference computes equations 6 to 11 of Shazeer et al. 2017 token by token.

  It takes the noise from the layer's logits.
  """
  moe = build_layer(top_k=2, router="noisy_top_k", importance_loss=0.3, load_loss=0.2)
  x = random_tokens()
  valid = valid_tokens()
  key = jax.random.key(4) if training else None
  routing = route(moe.router, x, subkey(key, 0))
  x_with_noisy_padding = x if training else jnp.where(valid[..., None], x, 50.0)
  _, aux = run(moe, x_with_noisy_padding, context(k_valid=valid), key)
  kernel = np.asarray(moe.router.__dict__["kernel"][...], np.float64)
  noise = np.asarray(moe.router.__dict__["noise"][...], np.float64)
  importance = np.zeros(E)
  load = np.zeros(E)
  for b, t in zip(*np.nonzero(valid), strict=True):
    clean = np.asarray(x[b, t], np.float64) @ kernel
    h = np.asarray(routing.logits_BTE[b, t], np.float64)
    deviation = np.log1p(np.exp(np.asarray(x[b, t], np.float64) @ noise))
    chosen = sorted(range(E), key=lambda e: -h[e])[:2]
    importance[chosen] += np.exp(h[chosen]) / np.exp(h[chosen]).sum()
    if not training:
      load[chosen] += 1
      continue
    for e in range(E):
      kth = sorted(np.delete(h, e))[-2]
      load[e] += (1 + math.erf((clean[e] - kth) / deviation[e] / 2**0.5)) / 2

  def squared_variation(sums_E):
    return (sums_E.std() / sums_E.mean()) ** 2

  expected = 0.3 * squared_variation(importance)
  np.testing.assert_allclose(aux["moe_importance_loss"], expected, rtol=1e-4)
  np.testing.assert_allclose(aux["moe_load_loss"], 0.2 * squared_variation(load), rtol=1e-4)


def test_noisy_gate_starts_with_zero_kernels_and_even_loads():
  """The noise distributes tokens over all experts, and both kernels have gradients."""
  options = Experts(experts=E, router="noisy_top_k")
  moe = Moe(D, F, rngs(), options, activation=jax.nn.relu, gated=False)
  arrays = params.arrays(moe)
  x = random_tokens(length=64)
  key = jax.random.key(1)
  assert not arrays["router/kernel"].any()
  assert not arrays["router/noise"].any()

  def losses(arrays):
    unmasked = Context(mask=Mask(positions(64), positions(64)))
    y, aux, _ = params.with_arrays(moe, arrays)(x, unmasked, None, key)
    return jnp.sum(jnp.sin(y)) + scalars(aux)["moe_load_loss"], (scalars(aux), aux["load"])

  gradients, (values, sums) = jax.jit(jax.grad(losses, has_aux=True))(arrays)
  np.testing.assert_allclose(sums.load_E, x[..., 0].size * 2 / E, rtol=0.1)
  assert float(values["moe_importance_loss"]) < 0.1 * 0.02
  assert float(values["moe_load_loss"]) < 0.1 * 0.02
  assert all(np.abs(gradients[f"router/{name}"]).max() > 0 for name in ("kernel", "noise"))


@pytest.mark.parametrize("router", ["softmax", "noisy_top_k"])
def test_outputs_and_losses_of_padding_are_zero(router):
  moe = build_layer(dispatch="capacity", router=router)
  y, aux = run(moe, random_tokens(), context(k_valid=jnp.zeros((B, T), bool)))
  assert not y.any()
  for name, value in aux.items():
    assert value == 0 or name.endswith("weights"), name


# Randomness and precision


@jax.jit
def route(router, x, key):
  return router(x, key)


def route_logits(router, key=None):
  """Return the logits of 64 rows of 64 tokens in float64."""
  x = random_tokens(rows=64, length=64)
  return np.asarray(route(router, x, key).logits_BTE, np.float64)


def test_noisy_gate_draws_noise_only_with_a_key():
  router = build_layer(top_k=2, router="noisy_top_k").router
  x = np.asarray(random_tokens(rows=64, length=64), np.float64)
  clean = route_logits(router)
  np.testing.assert_allclose(clean, x @ np.asarray(router.kernel[...]), atol=1e-4)
  deviation = np.log1p(np.exp(x @ np.asarray(router.noise[...], np.float64)))
  z = (route_logits(router, jax.random.key(0)) - clean) / deviation
  assert abs(z.mean()) < 4 / math.sqrt(z.size)
  assert abs(z.std() - 1) < 4 / math.sqrt(2 * z.size)


def test_routers_draw_jitter_only_with_a_key():
  jittered = build_layer(top_k=2, jitter=0.1).router
  plain = build_layer(top_k=2).router
  clean = route_logits(plain)
  np.testing.assert_array_equal(route_logits(plain, jax.random.key(0)), clean)
  np.testing.assert_array_equal(route_logits(jittered), clean)
  change = np.abs(route_logits(jittered, jax.random.key(0)) - clean)
  x = random_tokens(rows=64, length=64)
  assert np.max(change - 0.1 * np.abs(x) @ np.abs(jittered.kernel[...])) < 1e-4
  assert change.mean() > 1e-2


@pytest.mark.parametrize(
  "options", [{"jitter": 0.1}, {"router": "noisy_top_k"}, {"router": "sigmoid"}]
)
def test_router_saves_tokens_for_the_backward_pass_in_their_dtype(options):
  route = functools.partial(build_layer(top_k=2, **options).router, key=jax.random.key(0))
  x = random_tokens().astype(jnp.bfloat16)
  residuals = jax.eval_shape(lambda x: jax.vjp(lambda x: route(x).gates_BTk, x)[1], x)
  token_arrays = [a for a in jax.tree.leaves(residuals) if a.ndim > 2 and a.shape[-1] == D]
  assert jnp.float32 not in [a.dtype for a in token_arrays]


@pytest.mark.parametrize("dispatch", [{}, FULL_CAPACITY], ids=["dropless", "capacity"])
def test_dropout_of_experts_needs_a_key(dispatch):
  def output(dropout_rate, key=None):
    return run(build_layer(dropout_rate=dropout_rate, **dispatch), random_tokens(), context(), key)[
      0
    ]

  first = output(0.5, jax.random.key(0))
  second = output(0.5, jax.random.key(1))
  assert float(jnp.abs(first - second).max()) > 1e-2
  np.testing.assert_array_equal(output(0.5), output(0.0))


@pytest.mark.parametrize("dispatch", [{}, FULL_CAPACITY], ids=["dropless", "capacity"])
def test_router_computes_in_float32_under_bfloat16(dispatch):
  moe = build_layer(**dispatch)
  x = random_tokens().astype(jnp.bfloat16)
  y, aux = run(moe, x, context())
  assert y.dtype == jnp.bfloat16
  assert {value.dtype for value in aux.values()} == {jnp.dtype("float32")}
  routing = moe.router(x, None)
  for array in (routing.logits_BTE, routing.probs_BTE, routing.gates_BTk):
    assert array.dtype == jnp.float32
  expected, *_, logits, _ = reference(moe, np.asarray(x, np.float32))
  np.testing.assert_allclose(routing.logits_BTE, logits, rtol=1e-5, atol=1e-5)
  tolerance = 0.03 * np.abs(expected).max()
  np.testing.assert_allclose(y.astype(jnp.float32), expected, atol=tolerance)


# While decoding


def test_decoding_never_drops():
  moe = build_layer(dispatch="capacity", capacity_factor=0.1)
  x = random_tokens()
  # A cache is longer than the tokens fed.
  cached = Mask(positions(T), positions(20), k_valid=jnp.ones((B, 20), bool))
  slots = Context(mask=cached, slot=jnp.int32(0))
  y, _ = run(moe, x, slots)
  np.testing.assert_allclose(y, run(build_layer(), x, context())[0], atol=1e-5)
  np.testing.assert_allclose(run(moe, x[:, 3:4], slots)[0], y[:, 3:4], atol=1e-5)


# On a mesh


@functools.cache
def compile_on_mesh(dispatch, rows="data", **changes):
  """Compile a layer's loss and gradients for a 2 x 2 x 2 mesh of experts, rows and tensors.

  Returns: (the compiled function of arrays and tokens, shardings of the arrays, of the tokens).
  """
  moe = build_layer(dispatch=dispatch, capacity_factor=1.0)
  rules = Rules.make(make_mesh({"expert": 2, rows: 2, "tensor": 2}, jax.devices()), changes)
  gradient = jax.value_and_grad(functools.partial(loss, moe), argnums=(0, 1), has_aux=True)

  def on_mesh(arrays, x):
    with rules.activate():
      return gradient(arrays, x)

  shardings = rules.param_shardings(params.named_params(moe))
  embed = None if rows == "data" else rows
  assert shardings["wi"].spec == jax.sharding.PartitionSpec("expert", embed, "tensor")
  out = (None, (None, None)), (shardings, None)
  step = jax.jit(on_mesh, in_shardings=(shardings, rules.batch()), out_shardings=out)
  return step.lower(params.arrays(moe), random_tokens()).compile(), shardings, rules.batch()


def loss(moe, arrays, x):
  y, aux, _ = params.with_arrays(moe, arrays)(x, context(), None, None)
  aux = scalars(aux)
  return jnp.sum(jnp.sin(y)) + aux["moe_balance_loss"], (y, aux)


@pytest.mark.parametrize(
  "dispatch, over", [("dropless", "data"), ("capacity", "data"), ("capacity", "fsdp")]
)
def test_losses_and_gradients_on_a_mesh_equal_one_device(dispatch, over):
  moe = build_layer(dispatch=dispatch, capacity_factor=1.0)
  x = random_tokens()
  step, shardings, rows = compile_on_mesh(dispatch, over)
  arrays = jax.device_put(params.arrays(moe), shardings)
  (_, (y, aux)), (by_name, by_x) = step(arrays, jax.device_put(x, rows))
  on_one_device = jax.jit(
    jax.value_and_grad(functools.partial(loss, moe), argnums=(0, 1), has_aux=True)
  )
  (_, (y1, aux1)), (by_name1, by_x1) = on_one_device(params.arrays(moe), x)
  assert (float(aux["moe_dropped"]) > 0) == (dispatch == "capacity")
  actual = {"y": y, "x": by_x, **aux, **by_name}
  expected = {"y": y1, "x": by_x1, **aux1, **by_name1}
  assert_gradients_close(actual, expected, rtol=1e-5, atol=1e-5)


def program_on_mesh(rows="data", **changes):
  return compile_on_mesh("capacity", rows, **changes)[0].as_text()


def gathered_shapes_of(program) -> set[tuple[int, ...]]:
  shapes = re.findall(r"= \w+\[([\d,]*)\]\S* all-gather\(", program)
  return {tuple(map(int, shape.split(","))) for shape in shapes}


def test_tokens_move_to_experts_and_kernels_stay():
  """There are two all-to-alls forward and two backward; without the rule, kernels are gathered."""
  kernels = {(E, D, F), (E, F, D), (E, D, F // 2), (E, F // 2, D)}  # of all experts
  program = program_on_mesh()
  assert program.count(" all-to-all(") == 4, gathered_shapes_of(program)
  assert not gathered_shapes_of(program) & kernels
  control = program_on_mesh(activation_expert=None)
  assert gathered_shapes_of(control) & kernels


def test_no_device_gathers_all_experts_under_fsdp():
  """Kernels are gathered along `fsdp`, and each device sums the gradients of its experts."""
  gathered_shapes = gathered_shapes_of(program_on_mesh("fsdp"))
  assert gathered_shapes
  assert max(map(math.prod, gathered_shapes)) < E * D * F // 2, gathered_shapes


# Cost and options


@pytest.mark.parametrize("kind", ["switch", "mixtral"])
def test_flops_count_only_the_chosen_experts(kind):
  def flops(**dispatch):
    moe = build_layer(**KINDS[kind], **dispatch)
    return jaxpr_flops.forward_flops(
      lambda m, x: m(x, context(), None, None)[0], moe, random_tokens()
    )

  k = KINDS[kind]["top_k"]
  n = B * T
  assert flops() == 2 * n * k * 3 * D * F + 2 * n * D * E
  assert flops(dispatch="capacity", capacity_factor=1.0) == flops()


@pytest.mark.parametrize(
  "options, key, value",
  [
    ({"expert": 8}, "expert", "'experts'"),
    ({"top_k": "two"}, "top_k", "'two'"),
    ({"experts": 0}, "experts", "0"),
    ({"jitter": 1.0}, "jitter", "1.0"),
    ({"top_k": 9}, "top_k", "9, expected 1 to 8"),
    ({"router": "hash"}, "router", "'hash'"),
    ({"top_k": 1, "normalise": True}, "normalise", "True"),
    ({"capacity_factor": 0.0}, "capacity_factor", "0.0"),
  ],
)
def test_bad_options_are_refused(options, key, value):
  with refuses(f"config.model.design.experts.{key}: ", value):
    slots.replace_fields("config.model.design", Design(), {"experts": options})


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_k": 2, "normalise": False}])
def test_noisy_gate_without_a_gradient_is_refused(options):
  with refuses("experts.router", "'noisy_top_k'", "top_k"):
    build_layer(router="noisy_top_k", **options)
