"""Mixtures of experts equal a plain numpy reference, one token and one expert at a time."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_like import slots
from t5x_like.architectures.design import Design
from t5x_like.errors import UserError
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
ENOUGH = {"dispatch": "capacity", "capacity_factor": float(E)}


def layer(gated=True, dropout_rate=0.0, **options):
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
  if moe.experts.router == "noisy_top_k":  # whose gate starts at zero
    kernels = 0.3 * jax.random.normal(jax.random.key(6), (2, D, E))
    moe = params.with_arrays(
      moe, params.arrays(moe) | {"router/kernel": kernels[0], "router/noise": kernels[1]}
    )
  return moe


def tokens(seed=0, rows=B, length=T):
  return jnp.asarray(np.random.default_rng(seed).standard_normal((rows, length, D)), jnp.float32)


def valid_tokens():
  return np.arange(T)[None] < np.array([T, 3, 5, 1])[:, None]


def context(**fields):
  return Context(mask=Mask(positions(T), positions(T), **fields))


@jax.jit
def run(moe, x_BTD, context, key=None):
  y_BTD, aux, _ = moe(x_BTD, context, None, key)
  return y_BTD, scalars(aux)


def reference(moe, x, valid=None):
  """Return (outputs, chosen experts, probabilities, logits, dropped choices) by loops."""
  arrays = {name: np.asarray(a, np.float64) for name, a in params.arrays(moe).items()}
  options = moe.experts
  x = np.asarray(x, np.float64)
  k = options.top_k
  rows, length, _ = x.shape
  capacity = min(length, math.ceil(options.capacity_factor * length * k / E))
  capacity = capacity if options.dispatch == "capacity" else length
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
        gate = probs[b, t, e] / (probs[b, t, chosen[b, t]].sum() if moe.router.normalise else 1.0)
        h = x[b, t] @ arrays["wi"][e]
        g = x[b, t] @ arrays["gate"][e] if "gate" in arrays else h
        h = g / (1 + np.exp(-g)) * (h if "gate" in arrays else 1.0)
        y[b, t] += gate * (h @ arrays["wo"][e])
  return y, chosen, probs, logits, dropped


@pytest.mark.parametrize("dispatch", [{}, ENOUGH], ids=["dropless", "capacity"])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_equal_the_reference(kind, dispatch):
  moe = layer(gated=kind != "switch", **KINDS[kind], **dispatch)
  y, aux = run(moe, tokens(), context())
  np.testing.assert_allclose(y, reference(moe, tokens())[0], rtol=1e-4, atol=1e-4)
  names = ("importance_loss", "load_loss") if kind == "shazeer" else ("balance_loss", "z_loss")
  names += ("violation", "dropped", "violation_weights", "dropped_weights")
  assert aux.keys() == {f"moe_{name}" for name in names}
  assert float(aux["moe_dropped"]) == 0
  load_E = np.bincount(reference(moe, tokens())[1].reshape(-1), minlength=E)
  np.testing.assert_allclose(aux["moe_violation"], load_E.max() / load_E.mean() - 1, rtol=1e-5)


@pytest.mark.parametrize("kind", ["switch", "mixtral"])
def test_full_experts_drop_later_choices(kind):
  moe = layer(**KINDS[kind], dispatch="capacity", capacity_factor=0.6)
  valid = valid_tokens()
  for marks in (None, valid):
    fields = {} if marks is None else {"k_valid": jnp.asarray(marks)}
    y, aux = run(moe, tokens(), context(**fields))
    expected, *_, dropped = reference(moe, tokens(), marks)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    choices = (valid.sum() if marks is not None else B * T) * moe.experts.top_k
    assert dropped > 0 or marks is not None
    np.testing.assert_allclose(aux["moe_dropped"], dropped / choices, rtol=1e-6)


def test_evaluation_has_its_own_capacity_factor():
  """Training, which has a key, drops as many choices as with its factor alone."""
  moe = layer(top_k=1, dispatch="capacity", capacity_factor=0.6, eval_capacity_factor=float(E))
  alone = layer(top_k=1, dispatch="capacity", capacity_factor=0.6)
  for key, dropped in (
    (None, 0.0),
    (jax.random.key(0), float(run(alone, tokens(), context())[1]["moe_dropped"])),
  ):
    assert float(run(moe, tokens(), context(), key)[1]["moe_dropped"]) == dropped
  assert dropped > 0


@pytest.mark.parametrize("kind", KINDS)
def test_dispatches_agree_in_values_and_gradients(kind):
  marks = jnp.asarray(valid_tokens())
  moe_context = context(q_segments=marks.astype(jnp.int32), k_segments=marks.astype(jnp.int32))
  key = jax.random.key(3) if kind == "shazeer" else None

  def loss(arrays, x, model):
    y, aux, _ = params.with_arrays(model, arrays)(x, moe_context, None, key)
    aux = scalars(aux)
    y = jnp.where(marks[..., None], y, 0.0)
    return jnp.sum(jnp.sin(y)) + sum(
      value for name, value in aux.items() if name.endswith("_loss")
    ), y

  results = []
  for dispatch in ({}, ENOUGH):
    moe = layer(
      **KINDS[kind], **dispatch, balance_loss=1.0, z_loss=1.0, importance_loss=1.0, load_loss=1.0
    )
    gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    results.append(gradient(params.arrays(moe), tokens(), moe))
  ((_, y), (by_name, by_x)), ((_, y2), (by_name2, by_x2)) = results
  np.testing.assert_allclose(y, y2, atol=1e-5)
  np.testing.assert_allclose(by_x, by_x2, atol=1e-5 * np.abs(by_x).max())
  for name, g in by_name.items():
    np.testing.assert_allclose(g, by_name2[name], atol=1e-5 * np.abs(g).max(), err_msg=name)
    assert np.abs(g).max() > 0, name  # the router and its noise learn too


def test_gradients_are_those_of_the_values():
  """The moves have gradients of their own; finite differences know nothing of them."""
  for dispatch in ({}, {"dispatch": "capacity", "capacity_factor": 0.6}):
    moe = layer(**KINDS["mixtral"], **dispatch)

    def f(x, moe=moe):
      return jnp.sum(jnp.sin(moe(x, context(), None, None)[0]))

    x = tokens()
    direction = tokens(1)
    value = jax.jit(f)
    slope = (float(value(x + 1e-3 * direction)) - float(value(x - 1e-3 * direction))) / 2e-3
    np.testing.assert_allclose(
      float(jnp.sum(jax.jit(jax.grad(f))(x) * direction)), slope, rtol=2e-2
    )


# Losses


@pytest.mark.parametrize("where", ["k_valid", "q_segments", "valid", "nowhere"])
@pytest.mark.parametrize("kind", ["switch", "mixtral"])
def test_losses_are_means_over_valid_tokens(kind, where):
  moe = layer(**KINDS[kind], balance_loss=0.3, z_loss=0.2)
  valid = valid_tokens()
  if where == "q_segments":
    segments = jnp.asarray(valid, jnp.int32) * 2
    moe_context = context(q_segments=segments, k_segments=segments)
  elif where == "valid":
    moe_context = Context(mask=context().mask, valid=jnp.asarray(valid))
  else:
    moe_context = context(**({} if where == "nowhere" else {"k_valid": jnp.asarray(valid)}))
  marks = np.ones((B, T), bool) if where == "nowhere" else valid
  loud = jnp.where(marks[..., None], tokens(), 50.0)  # what padding holds must not matter
  _, aux = run(moe, loud, moe_context)
  _, chosen, probs, logits, _ = reference(moe, tokens())
  fractions = np.array([(chosen[marks] == e).sum() for e in range(E)]) / (
    marks.sum() * moe.experts.top_k
  )
  balance = E * np.sum(fractions * probs[marks].mean(0))
  np.testing.assert_allclose(aux["moe_balance_loss"], 0.3 * balance, rtol=1e-5)
  np.testing.assert_allclose(
    aux["moe_z_loss"], 0.2 * np.mean(np.log(np.exp(logits[marks]).sum(-1)) ** 2), rtol=1e-5
  )


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_importance_and_load_follow_their_paper(training):
  """Shazeer et al. 2017, equations 6 to 11, token by token; the noise is read back from the
  logits."""
  moe = layer(top_k=2, router="noisy_top_k", importance_loss=0.3, load_loss=0.2)
  x = tokens()
  valid = valid_tokens()
  key = jax.random.key(4) if training else None
  routing = jax.jit(lambda router, x, key: router(x, key))(
    moe.router, x, None if key is None else subkey(key, 0)
  )
  _, aux = run(
    moe, jnp.where(valid[..., None], x, 50.0) if not training else x, context(k_valid=valid), key
  )
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
    for e in range(E):
      kth = sorted(np.delete(h, e))[-2]
      above = (
        math.erf((clean[e] - kth) / deviation[e] / 2**0.5) if training else 2 * (e in chosen) - 1
      )
      load[e] += (1 + above) / 2
  np.testing.assert_allclose(
    aux["moe_importance_loss"], 0.3 * (importance.std() / importance.mean()) ** 2, rtol=1e-4
  )
  np.testing.assert_allclose(aux["moe_load_loss"], 0.2 * (load.std() / load.mean()) ** 2, rtol=1e-4)


def test_the_noisy_gate_starts_with_zero_kernels_and_even_loads():
  """The noise spreads tokens over all experts, and both kernels have gradients."""
  moe = Moe(
    D,
    F,
    nnx.Rngs(params=0),
    Experts(experts=E, router="noisy_top_k"),
    activation=jax.nn.relu,
    gated=False,
  )
  arrays = params.arrays(moe)
  x = tokens(length=64)
  key = jax.random.key(1)
  assert not arrays["router/kernel"].any()
  assert not arrays["router/noise"].any()

  def losses(arrays):
    y, aux, _ = params.with_arrays(moe, arrays)(
      x, Context(mask=Mask(positions(64), positions(64))), None, key
    )
    return jnp.sum(jnp.sin(y)) + scalars(aux)["moe_load_loss"], (scalars(aux), aux["load"])

  gradients, (values, sums) = jax.jit(jax.grad(losses, has_aux=True))(arrays)
  np.testing.assert_allclose(sums.load_E, x[..., 0].size * 2 / E, rtol=0.1)
  assert float(values["moe_importance_loss"]) < 0.1 * 0.02
  assert float(values["moe_load_loss"]) < 0.1 * 0.02
  assert all(np.abs(gradients[f"router/{name}"]).max() > 0 for name in ("kernel", "noise"))


def test_a_batch_of_padding_is_finite_and_even_loads_cost_one():
  moe = layer(top_k=E, balance_loss=1.0)
  _, aux = run(moe, tokens(), context())
  # every expert chosen by every token
  np.testing.assert_allclose(aux["moe_balance_loss"], 1.0, rtol=1e-6)
  for router in ("softmax", "noisy_top_k"):
    moe = layer(dispatch="capacity", router=router)
    y, aux = run(moe, tokens(), context(k_valid=jnp.zeros((B, T), bool)))
    assert float(jnp.abs(y).max()) == 0
    assert {float(value) for name, value in aux.items() if not name.endswith("weights")} == {0.0}


# Randomness and precision


def test_routers_draw_noise_only_with_a_key():
  moe = layer(top_k=2, router="noisy_top_k")
  x = tokens(rows=64, length=64)
  route = jax.jit(lambda router, x, key: router(x, key))
  clean = route(moe.router, x, None).logits_BTE
  noisy = route(moe.router, x, jax.random.key(0)).logits_BTE
  np.testing.assert_allclose(clean, np.asarray(x) @ np.asarray(moe.router.kernel[...]), atol=1e-4)
  deviation = np.log1p(
    np.exp(np.asarray(x, np.float64) @ np.asarray(moe.router.noise[...], np.float64))
  )
  z = (np.asarray(noisy) - np.asarray(clean)) / deviation
  assert abs(z.mean()) < 4 / math.sqrt(z.size)
  assert abs(z.std() - 1) < 4 / math.sqrt(2 * z.size)
  jittered = layer(top_k=2, jitter=0.1).router
  plain = layer(top_k=2).router
  clean = route(plain, x, None).logits_BTE
  np.testing.assert_array_equal(route(jittered, x, None).logits_BTE, clean)
  moved = jnp.abs(route(jittered, x, jax.random.key(0)).logits_BTE - clean)
  assert float(jnp.max(moved - 0.1 * jnp.abs(x) @ jnp.abs(jittered.kernel[...]))) < 1e-4
  assert float(moved.mean()) > 1e-2
  np.testing.assert_array_equal(route(plain, x, jax.random.key(0)).logits_BTE, clean)


@pytest.mark.parametrize(
  "options", [{"jitter": 0.1}, {"router": "noisy_top_k"}, {"router": "sigmoid"}]
)
def test_the_backward_pass_of_a_router_keeps_tokens_in_their_own_dtype(options):
  route = functools.partial(layer(top_k=2, **options).router, key=jax.random.key(0))
  back = jax.eval_shape(
    lambda x: jax.vjp(lambda x: route(x).gates_BTk, x)[1], tokens().astype(jnp.bfloat16)
  )
  assert not [
    x for x in jax.tree.leaves(back) if x.dtype == jnp.float32 and x.ndim > 2 and x.shape[-1] == D
  ]


def test_experts_drop_out_only_with_a_key():
  for dispatch in ({}, ENOUGH):
    moe = layer(dropout_rate=0.5, **dispatch)
    first = run(moe, tokens(), context(), jax.random.key(0))[0]
    second = run(moe, tokens(), context(), jax.random.key(1))[0]
    assert float(jnp.abs(first - second).max()) > 1e-2
    assert (
      run(moe, tokens(), context())[0] == run(layer(**dispatch), tokens(), context())[0]
    ).all()


@pytest.mark.parametrize("dispatch", [{}, ENOUGH], ids=["dropless", "capacity"])
def test_the_router_is_float32_under_bfloat16(dispatch):
  moe = layer(**dispatch)
  x = tokens().astype(jnp.bfloat16)
  y, aux = run(moe, x, context())
  assert y.dtype == jnp.bfloat16
  assert {value.dtype for value in aux.values()} == {jnp.dtype("float32")}
  routing = moe.router(x, None)
  assert {a.dtype for a in (routing.logits_BTE, routing.probs_BTE, routing.gates_BTk)} == {
    jnp.dtype("float32")
  }
  expected, *_, logits, _ = reference(moe, np.asarray(x, np.float32))
  np.testing.assert_allclose(routing.logits_BTE, logits, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(
    np.asarray(y, np.float32), expected, atol=0.03 * np.abs(expected).max()
  )


# While decoding


def test_decoding_never_drops():
  moe = layer(dispatch="capacity", capacity_factor=0.1)
  x = tokens()
  # A cache is longer than the tokens fed.
  slots = Context(
    mask=Mask(positions(T), positions(20), k_valid=jnp.ones((B, 20), bool)), slot=jnp.int32(0)
  )
  y, _ = run(moe, x, slots)
  np.testing.assert_allclose(y, run(layer(), x, context())[0], atol=1e-5)
  np.testing.assert_allclose(run(moe, x[:, 3:4], slots)[0], y[:, 3:4], atol=1e-5)


# On a mesh


def compile_on_mesh(moe, x, rows="data", **changes):
  """(loss and gradients compiled for expert=2 x data=2 x tensor=2, shardings of the parameters, of
  the rows)."""
  rules = Rules.make(make_mesh({"expert": 2, rows: 2, "tensor": 2}, jax.devices()), changes)

  def on_mesh(arrays, x):
    with rules.activate():
      return jax.value_and_grad(functools.partial(loss, moe), argnums=(0, 1), has_aux=True)(
        arrays, x
      )

  shardings = rules.param_shardings(params.named_params(moe))
  assert shardings["wi"].spec == jax.sharding.PartitionSpec(
    "expert", None if rows == "data" else rows, "tensor"
  )
  out = (None, (None, None)), (shardings, None)
  step = jax.jit(on_mesh, in_shardings=(shardings, rules.batch()), out_shardings=out)
  return step.lower(params.arrays(moe), x).compile(), shardings, rules.batch()


def loss(moe, arrays, x):
  y, aux, _ = params.with_arrays(moe, arrays)(x, context(), None, None)
  aux = scalars(aux)
  return jnp.sum(jnp.sin(y)) + aux["moe_balance_loss"], (y, aux)


@pytest.mark.parametrize(
  "dispatch, over", [("dropless", "data"), ("capacity", "data"), ("capacity", "fsdp")]
)
def test_a_mesh_changes_no_loss_and_no_gradient(dispatch, over):
  moe = layer(dispatch=dispatch, capacity_factor=1.0)
  x = tokens()
  step, shardings, rows = compile_on_mesh(moe, x, over)
  (_, (y, aux)), gradients = step(
    jax.device_put(params.arrays(moe), shardings), jax.device_put(x, rows)
  )
  alone = jax.jit(jax.value_and_grad(functools.partial(loss, moe), argnums=(0, 1), has_aux=True))
  (_, (y1, aux1)), gradients1 = alone(params.arrays(moe), x)
  assert (float(aux["moe_dropped"]) > 0) == (dispatch == "capacity")

  def assert_close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())

  jax.tree.map(assert_close, (y, aux, gradients), (y1, aux1, gradients1))


def test_tokens_move_to_experts_and_kernels_stay():
  """There are two all-to-alls forward and two backward; the control gathers kernels."""
  moe = layer(dispatch="capacity", capacity_factor=1.0)
  # those of all experts
  kernels = {f"{E},{a},{b}" for f in (F, F // 2) for a, b in ((D, f), (f, D))}

  def shapes_of_gathers(program):
    return {m.group(1) for m in re.finditer(r"= \w+\[([\d,]*)\]\S* all-gather\(", program)}

  sharded_program = compile_on_mesh(moe, tokens())[0].as_text()
  control_program = compile_on_mesh(moe, tokens(), activation_expert=None)[0].as_text()
  assert sharded_program.count(" all-to-all(") == 4, shapes_of_gathers(sharded_program)
  assert not shapes_of_gathers(sharded_program) & kernels
  assert shapes_of_gathers(control_program) & kernels
  # Where rows are split over `fsdp` too, kernels are gathered along it, and each device sums the
  # gradients of its own experts: nothing of all experts is on any device.
  text = compile_on_mesh(moe, tokens(), "fsdp")[0].as_text()
  gathered_shapes = shapes_of_gathers(text)
  assert gathered_shapes, gathered_shapes
  for shape in gathered_shapes:
    assert math.prod(map(int, shape.split(","))) < E * D * F // 2, gathered_shapes


# Cost and options


@pytest.mark.parametrize("kind", ["switch", "mixtral"])
def test_flops_are_those_of_the_chosen_experts(kind):
  moe = layer(**KINDS[kind])
  k = moe.experts.top_k
  n = B * T
  count = jaxpr_flops.forward_flops(
    lambda made, x: made(x, context(), None, None)[0], moe, tokens()
  )
  assert count == 2 * n * k * 3 * D * F + 2 * n * D * E
  moe = layer(**KINDS[kind], dispatch="capacity", capacity_factor=1.0)
  assert count == jaxpr_flops.forward_flops(
    lambda made, x: made(x, context(), None, None)[0], moe, tokens()
  )


@pytest.mark.parametrize(
  "options, message",
  [
    ({"expert": 8}, "config.model.design.experts.expert: unknown key .did you mean 'experts'"),
    ({"top_k": "two"}, "config.model.design.experts.top_k: found 'two'"),
    (
      {"experts": 0},
      "config.model.design.experts.experts: found 0 .*expected a whole number above 0",
    ),
    (
      {"jitter": 1.0},
      "config.model.design.experts.jitter: found 1.0 .*expected a number, at "
      "least 0 and less than 1",
    ),
    ({"top_k": 9}, "config.model.design.experts.top_k: found 9, expected 1 to 8"),
    ({"router": "hash"}, "config.model.design.experts.router: found 'hash'"),
    (
      {"top_k": 1, "normalise": True},
      "config.model.design.experts.normalise: found True, expected False",
    ),
    (
      {"capacity_factor": 0.0},
      "config.model.design.experts.capacity_factor: found 0.0 .*expected a number above 0",
    ),
  ],
)
def test_wrong_options_are_refused(options, message):
  with pytest.raises(UserError, match=message) as error:
    slots.replace_fields("config.model.design", Design(), {"experts": options})
  assert "\n" not in str(error.value)


def test_a_noisy_gate_without_a_gradient_is_refused():
  for options in ({"top_k": 1}, {"top_k": 2, "normalise": False}):
    with pytest.raises(
      UserError, match="experts.router: found 'noisy_top_k' .*expected top_k above 1 and normalised"
    ):
      layer(router="noisy_top_k", **options)
