"""XLNet's query stream sees only earlier predictions, in packed rows and at fewer positions too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tiny
from t5x_like.errors import UserError
from t5x_like.models import xlnet
from tests.models.families import Nudged, shrunk

VARIANT = shrunk(xlnet.VARIANTS["xlnet-base"])
TOKENS = np.random.default_rng(0).integers(3, 64, (2, 7)).astype(np.int32)
TOKENS[:, 0] = VARIANT.tokens.start
TYPES = np.repeat([[0, 1]], (4, 3), axis=1).repeat(2, 0).astype(np.int32)
ORDER = np.array([[0, 3, 0, 1, 2, 0, 4], [0, 0, 1, 0, 0, 2, 0]], np.int32)
BATCH = {"encoder_input_tokens": TOKENS, "encoder_token_types": TYPES, "encoder_order": ORDER}


@pytest.fixture(scope="module")
def model():
  return tiny.model(VARIANT, family=xlnet)


def test_a_prediction_depends_on_given_tokens_and_on_those_predicted_before_it(model):
  """Gradients are zero for itself and for tokens predicted later."""
  first_row = {name: x[:1] for name, x in BATCH.items()}

  @jax.jit
  def reach(model):
    def states(nudge_SD):
      nudged = jax.tree.map(lambda x: x, model)
      nudged.embed = Nudged(model.embed, nudge_SD)
      x_BTD, _, _ = nudged.encode(first_row)
      return x_BTD[0] @ jnp.arange(16.0)  # a norm has made their sum constant

    return jnp.abs(jax.jacrev(states)(jnp.zeros((7, 16)))).max(-1)  # [T, S]

  content, query = np.split(np.asarray(reach(model)) > 0, 2)
  order = ORDER[0]
  visible = order[None] < order[:, None]
  assert (query == visible)[order > 0].all()
  assert (content == (order[None] <= order[:, None])).all()


def test_fewer_positions_packing_and_padding_change_no_logits(model):
  """All logits, those at masked places alone, and those of two sequences in one row with garbage
  behind them."""
  positions = np.array([[3, 4, 1, 6], [2, 5, 0, 0]], np.int32)
  packed = {name: np.concatenate([x[0], x[1], x[0, :2]])[None] for name, x in BATCH.items()}
  packed["encoder_segment_ids"] = np.repeat([1, 2, 0], (7, 7, 2)).astype(np.int32)[None]
  packed["encoder_positions"] = np.concatenate([np.arange(n) for n in (7, 7, 2)]).astype(np.int32)[
    None
  ]
  run = jax.jit(lambda model, batch: model(batch)["permutation_logits"])
  everywhere = run(model, BATCH)
  selected = run(model, BATCH | {"encoder_masked_positions": positions})
  together = np.asarray(run(model, packed)[0])
  for row, predicted in ((0, positions[0]), (1, positions[1][:2])):
    expected = np.asarray(everywhere[row])[predicted]
    np.testing.assert_allclose(np.asarray(selected[row])[: len(predicted)], expected, atol=1e-5)
    np.testing.assert_allclose(together[7 * row + predicted], expected, atol=1e-5)
  filled = model.generate(BATCH | {"encoder_masked_positions": positions})["logits"].dense()
  # from fewer tokens
  assert filled.shape == (2, 4, 64)
  assert not np.allclose(filled[0, 2], selected[0, 2])


def test_states_equal_those_of_rows_that_end_with_cls(model):
  """<cls> begins a row here, and ends it in a segment of its own there."""
  our_batch = {name: BATCH[f"encoder_{name}"] for name in ("input_tokens", "token_types")}
  rotated_batch = {name: np.roll(x, -1, axis=1) for name, x in our_batch.items()}
  rotated_batch["token_types"][:, -1] = 2
  padded = {
    name: np.pad(x, ((0, 0), (0, 2)), constant_values=VARIANT.tokens.pad)
    for name, x in our_batch.items()
  }
  run = jax.jit(
    lambda model, batch: model.encode({f"encoder_{name}": x for name, x in batch.items()})[0]
  )
  expected = np.roll(run(model, rotated_batch), 1, axis=1)
  for batch in (our_batch, padded):
    np.testing.assert_allclose(run(model, batch)[:, :7], expected, atol=1e-5)


def test_designs_without_its_attention_are_refused():
  for change in ({"position": "rope"}, {"core": "auto"}, {"qk_norm": True}):
    with pytest.raises(
      UserError, match="config.model.design: found .*XLNet's attention has its own positions"
    ):
      tiny.abstract(VARIANT, family=xlnet, design=change)
