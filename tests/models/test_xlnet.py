"""XLNet predicts a token from the tokens earlier in its order, also in packed rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tiny
from t5x_like.errors import UserError
from t5x_like.models import xlnet
from tests.models.families import NudgedEmbed, shrink

VARIANT = shrink(xlnet.VARIANTS["xlnet-base"])
TOKENS = np.random.default_rng(0).integers(3, 64, (2, 7)).astype(np.int32)
TOKENS[:, 0] = VARIANT.tokens.start
TYPES = np.repeat([[0, 1]], (4, 3), axis=1).repeat(2, 0).astype(np.int32)
ORDER = np.array([[0, 3, 0, 1, 2, 0, 4], [0, 0, 1, 0, 0, 2, 0]], np.int32)
BATCH = {"encoder_input_tokens": TOKENS, "encoder_token_types": TYPES, "encoder_order": ORDER}


@pytest.fixture(scope="module")
def model():
  return tiny.model(VARIANT, family=xlnet)


def test_prediction_depends_on_context_tokens_and_earlier_predictions(model):
  """Gradients of the query stream are zero for the token itself and for later predictions."""
  first_row = {name: x[:1] for name, x in BATCH.items()}

  @jax.jit
  def largest_gradients(model):
    def compute_states(nudge_SD):
      nudged_model = jax.tree.map(lambda x: x, model)  # a copy
      nudged_model.embed = NudgedEmbed(model.embed, nudge_SD)
      x_BTD, _, _ = nudged_model.encode(first_row)
      # Unequal weights, because the last norm makes the sum of a state constant.
      return x_BTD[0] @ jnp.arange(16.0)

    gradient_TSD = jax.jacrev(compute_states)(jnp.zeros((7, 16)))
    return jnp.abs(gradient_TSD).max(-1)

  # The content stream is the first half of the states, the query stream the second.
  content_depends_TS, query_depends_TS = np.split(np.asarray(largest_gradients(model)) > 0, 2)
  order = ORDER[0]
  is_earlier_TS = order[None] < order[:, None]
  is_earlier_or_same_TS = order[None] <= order[:, None]
  assert (query_depends_TS == is_earlier_TS)[order > 0].all()
  assert (content_depends_TS == is_earlier_or_same_TS).all()


def test_masked_positions_packing_and_padding_do_not_change_logits(model):
  """Logits at masked positions only, and of two packed sequences, equal the logits of full rows."""
  positions = np.array([[3, 4, 1, 6], [2, 5, 0, 0]], np.int32)
  packed = {name: np.concatenate([x[0], x[1], x[0, :2]])[None] for name, x in BATCH.items()}
  packed["encoder_segment_ids"] = np.repeat([1, 2, 0], (7, 7, 2)).astype(np.int32)[None]
  packed_positions = np.concatenate([np.arange(7), np.arange(7), np.arange(2)])
  packed["encoder_positions"] = packed_positions.astype(np.int32)[None]
  run = jax.jit(lambda model, batch: model(batch)["permutation_logits"])
  full_logits = np.asarray(run(model, BATCH))
  masked_logits = np.asarray(run(model, BATCH | {"encoder_masked_positions": positions}))
  packed_logits = np.asarray(run(model, packed)[0])
  # The second row has two masked positions, followed by padding.
  for row, masked in ((0, positions[0]), (1, positions[1][:2])):
    expected = full_logits[row, masked]
    np.testing.assert_allclose(masked_logits[row, : len(masked)], expected, atol=1e-5)
    np.testing.assert_allclose(packed_logits[7 * row + masked], expected, atol=1e-5)
  # `generate` predicts every masked position only from unmasked tokens.
  filled_logits = model.generate(BATCH | {"encoder_masked_positions": positions})["logits"].dense()
  assert filled_logits.shape == (2, 4, 64)
  assert not np.allclose(filled_logits[0, 2], masked_logits[0, 2])


def test_rows_that_begin_with_cls_have_the_same_states_as_published_rows(model):
  """Published rows end with <cls>, in a third segment."""
  our_batch = {name: BATCH[f"encoder_{name}"] for name in ("input_tokens", "token_types")}
  published_batch = {name: np.roll(x, -1, axis=1) for name, x in our_batch.items()}
  published_batch["token_types"][:, -1] = 2
  padded_batch = {}
  for name, x in our_batch.items():
    padded_batch[name] = np.pad(x, ((0, 0), (0, 2)), constant_values=VARIANT.tokens.pad)

  @jax.jit
  def encode(model, batch):
    states, _, _ = model.encode({f"encoder_{name}": x for name, x in batch.items()})
    return states

  expected = np.roll(encode(model, published_batch), 1, axis=1)
  for batch in (our_batch, padded_batch):
    np.testing.assert_allclose(encode(model, batch)[:, :7], expected, atol=1e-5)


def test_designs_with_other_attention_are_refused():
  for change in ({"position": "rope"}, {"core": "auto"}, {"qk_norm": True}):
    with pytest.raises(
      UserError, match="config.model.design: found .*XLNet's attention has its own positions"
    ):
      tiny.abstract(VARIANT, family=xlnet, design=change)
