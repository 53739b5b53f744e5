"""A stack whose layers are on the stages of a pipeline equals the stack on one device."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tiny
from arrays import assert_trees_close
from more import beyond
from refusals import refuses
from t5x_like.architectures.design import Variant
from t5x_like.models import bert, llama, mixtral
from t5x_like.models import t5 as t5_family
from t5x_like.nn import params
from t5x_like.nn import pipeline as pipelines
from t5x_like.nn.dims import Dims
from t5x_like.nn.layer import Context
from t5x_like.nn.mask import Mask, positions
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from tests import topics

ROWS = 8
LENGTH = 12
DIMS = Dims(embed=16, heads=4, kv_heads=2, head_dim=4, mlp=32, layers=4)
MIXTRAL = next(iter(mixtral.VARIANTS.values())).design
MESH = {"data": 2, "stage": 2, "tensor": 2}
FSDP = {"fsdp": 4, "stage": 2}


def packed_batch(side):
  generator = np.random.default_rng(1)
  lengths = generator.integers(3, 6, (ROWS, 2))
  segments = np.zeros((ROWS, LENGTH), np.int32)
  pos = np.zeros((ROWS, LENGTH), np.int32)
  for row, (a, b) in enumerate(lengths):
    segments[row, :a] = 1
    segments[row, a : a + b] = 2
    pos[row, :a] = np.arange(a)
    pos[row, a : a + b] = np.arange(b)
  tokens = generator.integers(2, 64, (ROWS, LENGTH)).astype(np.int32) * (segments > 0)
  return {f"{side}_input_tokens": tokens, f"{side}_segment_ids": segments, f"{side}_positions": pos}


BERT = next(iter(bert.VARIANTS.values())).design
# name: (family, design, features of a batch, arguments of the model)
CASES = {
  "decoder": (llama, llama.LLAMA2, packed_batch("decoder"), {}),
  "encoder": (bert, BERT, packed_batch("encoder"), {"remat": "full"}),
  "encoder_decoder": (
    t5_family,
    t5_family.V1_1,
    packed_batch("encoder") | packed_batch("decoder"),
    {"layers": "loop"},
  ),
  "experts": (
    mixtral,
    replace(MIXTRAL, experts=replace(MIXTRAL.experts, balance_loss=0.5)),
    packed_batch("decoder"),
    {},
  ),
  "two_rounds": (
    llama,
    llama.LLAMA2,
    packed_batch("decoder"),
    {"pipeline": {"rounds": 2, "microbatches": 4}, "remat": "full"},
  ),
}
for name, core in topics.cases("PIPELINED_CORES").items():
  CASES[name] = (bert, replace(BERT, core=core), packed_batch("encoder"), {})


def make_rules(mesh):
  return Rules.make(make_mesh(mesh, jax.devices()[: int(np.prod(list(mesh.values()), initial=1))]))


def run(case, mesh, **changes):
  """Return ((logits of tokens, auxiliary losses), gradients, the compiled program)."""
  family, design, batch, arguments = CASES[case]
  model = tiny.model(Variant(DIMS, design, 64), family=family, **(arguments | changes))
  rules = make_rules(mesh)
  arrays = jax.device_put(params.arrays(model), rules.param_shardings(params.named_params(model)))
  weights = np.random.default_rng(0).standard_normal((ROWS, LENGTH, 1)).astype(np.float32)
  side = "decoder" if "decoder_segment_ids" in batch else "encoder"
  weights *= batch[f"{side}_segment_ids"][..., None] > 0
  batch = jax.device_put(batch, rules.batch())

  def loss(arrays, batch):
    out = params.with_arrays(model, arrays)(batch)
    logits = out["logits"]
    auxiliary_loss = sum(x for name, x in out.items() if name.endswith("_loss"))
    outputs = jnp.where(weights != 0, logits, 0.0), auxiliary_loss
    return jnp.sum(jnp.sin(logits) * weights) + auxiliary_loss, outputs

  def run_with_gradients(arrays, batch):
    with rules.activate():
      return jax.value_and_grad(loss, has_aux=True)(arrays, batch)

  step = jax.jit(run_with_gradients).lower(arrays, batch).compile()
  (_, out), gradients = step(arrays, batch)
  return *jax.tree.map(np.asarray, (out, gradients)), step.as_text()


@pytest.mark.parametrize(
  "case, mesh", [("decoder", FSDP), *beyond(1, [(case, MESH) for case in reversed(CASES)])]
)
def test_stages_equal_one_device(case, mesh):
  out, gradients, program = run(case, mesh)
  assert ("reduce-scatter" in program) == (mesh is FSDP)
  expected, expected_gradients, _ = run(case, {}, pipeline={})
  assert_trees_close(out, expected, rtol=1e-4, atol=1e-5)
  for name, g in expected_gradients.items():
    atol = 1e-6 + 2e-5 * np.abs(g).max()
    np.testing.assert_allclose(gradients[name], g, rtol=1e-4, atol=atol, err_msg=name)


def test_only_arrays_with_a_row_per_example_are_divided_into_microbatches():
  """DeBERTa's array of vectors for 512 distances may have as many rows as a batch."""
  rows = jnp.zeros((ROWS, 1, 2, 2))
  vectors = jnp.zeros((ROWS, 16))
  mask = Mask(positions(LENGTH), positions(LENGTH))
  for bias, is_divided in ((rows, True), (vectors, False), (rows[:1], False)):
    context = Context(mask=mask, bias=bias, position_vectors=jnp.zeros((ROWS, LENGTH, 16)))
    microbatch = pipelines.MicrobatchRows.divide(context, ROWS, 4).context(context, 1)
    assert microbatch.bias.shape[0] == (ROWS // 4 if is_divided else bias.shape[0])
    assert microbatch.position_vectors.shape[0] == ROWS // 4


@pytest.mark.parametrize(
  "pipeline, words",
  [
    ({"microbatches": 3}, ("microbatches: found 3", "divisor of the 8 rows")),
    ({"rounds": 4}, ("found 4 layers", "multiple of 8 for 2 stages and 4 rounds")),
    ({"rounds": 2, "microbatches": 1}, ("microbatches: found 1", "2 stages for 2 rounds")),
    ({"round": 2}, ("config.model.pipeline.round: unknown key",)),
  ],
)
def test_layers_and_rows_that_do_not_divide_are_refused(pipeline, words):
  family, design, batch, _ = CASES["decoder"]
  make = tiny.maker(Variant(DIMS, design, 64), family=family, pipeline=pipeline)
  with refuses(*words), make_rules(MESH).activate():
    jax.eval_shape(lambda key: make(key)(batch), jax.random.key(0))
