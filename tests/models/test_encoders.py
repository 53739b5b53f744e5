"""Encoders have heads for fine-tuning; ELECTRA and DeBERTa v3 train two networks."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tiny
from t5x_like.errors import UserError
from t5x_like.models import bert, deberta, deberta_rtd, electra, gpt, modernbert, roberta
from t5x_like.nn import params
from t5x_like.nn.vocabulary_logits import materialise_logits
from t5x_like.objectives import electra as electra_objective
from tests import topics
from tests.models.families import shrink

B = 4
T = 10
BERT = shrink(bert.VARIANTS["bert-base-uncased"])
ELECTRA = shrink(electra.VARIANTS["electra-small"])


def batch(pad: int = 0) -> dict[str, jax.Array]:
  tokens = np.random.default_rng(0).integers(3, 64, (B, T)).astype(np.int32)
  tokens[1, 7:] = pad
  return {"encoder_input_tokens": jnp.asarray(tokens)}


# (head, shapes of its outputs, whether it has dropout)
HEADS = [
  ("pretraining", {"logits": (B, T, 64), "next_sentence_logits": (B, 2)}, False),
  ("next_sentence", {"logits": (B, 2)}, True),
  ({"name": "classification", "labels": 3}, {"logits": (B, 3)}, True),
  ({"name": "classification", "labels": 1, "activation": "gelu"}, {"logits": (B, 1)}, True),
  ({"name": "multiple_choice", "choices": 2}, {"logits": (B // 2, 2)}, True),
  ({"name": "tokens", "labels": 5}, {"logits": (B, T, 5)}, True),
  ("spans", {"logits": (B, T, 2), "start_logits": (B, T), "end_logits": (B, T)}, False),
  ("discriminator", {"logits": (B, T)}, False),
  ("pooled", {"logits": (B, T, 16), "pooled": (B, 16)}, False),
  ("none", {"logits": (B, T, 16)}, False),
  *((head, shapes, True) for head, shapes in topics.cases("ENCODER_HEADS").values()),
]


@pytest.mark.parametrize(
  "head, shapes, drops",
  HEADS,
  ids=[h if isinstance(h, str) else "-".join(map(str, h.values())) for h, *_ in HEADS],
)
def test_heads_have_their_shapes_and_dropout_only_with_a_key(head, shapes, drops):
  model = tiny.model(BERT, family=bert, head=head, dropout=0.5)
  assert model.variant.head == head  # the variant records its head

  @jax.jit
  def run(model, batch):
    x_BTD, valid, _ = model.encode(batch)
    keys = None, None, jax.random.key(1), jax.random.key(2)
    return model(batch), [
      materialise_logits(model.head(x_BTD, model.embed, valid, key)) for key in keys
    ]

  outputs, (pooled_first, same, dropped, pooled_other) = run(model, batch())
  assert {name: x.shape for name, x in outputs.items()} == shapes
  assert all(x.dtype == jnp.float32 for x in outputs.values())
  for name in shapes:
    assert (pooled_first[name] == same[name]).all()
    assert (pooled_first[name] != dropped[name]).any() == drops
    assert (pooled_other[name] != dropped[name]).any() == drops
    np.testing.assert_allclose(pooled_first[name], outputs[name], atol=1e-6)


@pytest.mark.parametrize(
  "head, message",
  [
    ("mlmm", "config.model.head: found 'mlmm'.*did you mean 'mlm'"),
    ({"name": "tokens", "choices": 3}, "config.model.head.choices: unknown key; it takes labels"),
    (
      {"name": "tokens", "labels": 0},
      "config.model.head.labels: found 0 .*, expected a whole number above 0",
    ),
    ({"name": "classification", "activation": "tan"}, "config.model.head.activation: found 'tan'"),
  ],
)
def test_unknown_head_is_refused(head, message):
  with pytest.raises(UserError, match=message):
    tiny.model(BERT, family=bert, head=head)


def test_gpt_reader_is_causal():
  variant = shrink(gpt.VARIANTS["gpt1"])
  tokens = batch()["encoder_input_tokens"]
  changed = tokens.at[0, 4].set(2)
  model = tiny.model(variant, family=types.SimpleNamespace(Model=gpt.Reader), head="none")
  run = jax.jit(lambda model, x: model({"encoder_input_tokens": x})["logits"][0])
  original = run(model, tokens)
  after_change = run(model, changed)
  assert (original[4:] != after_change[4:]).any(axis=-1).all()
  assert (original[:4] == after_change[:4]).all()


def test_positions_of_roberta_begin_at_the_third_row():
  model = tiny.model(shrink(roberta.VARIANTS["roberta-base"]), family=roberta)
  table = model.inputs.position.table
  first = model.inputs.position.embed(jnp.zeros((1, 1, 16)), jnp.zeros((1, 1), jnp.int32))
  assert table.shape == (18, 16)
  assert (first[0, 0] == table[...][2]).all()


@pytest.mark.parametrize(
  "variant", [ELECTRA, shrink(electra.VARIANTS["electra-base"])], ids=["narrow table", "base"]
)
def test_networks_of_electra_share_their_input_layers(variant):
  """Each separate network equals its part of the joint model, which counts shared tables once."""
  model = tiny.model(variant, family=electra)
  generator, discriminator = model.networks()
  assert generator.variant.dims.embed == 8
  assert generator.variant.head == "mlm"
  joint, alone = jax.jit(lambda m, g, d, b: (m(b), (g(b), d(b))))(
    model, generator, discriminator, batch()
  )
  np.testing.assert_allclose(joint["generator_logits"], alone[0]["logits"], atol=1e-6)
  np.testing.assert_allclose(joint["logits"], alone[1]["logits"], atol=1e-6)
  assert joint["generator_logits"].shape == (B, T, 64)
  assert joint["logits"].shape == (B, T)
  shared = {
    n
    for n in params.named_params(generator)
    if n.split("/")[0] in ("embed", "inputs") and "project" not in n
  }
  assert {
    "embed/table",
    "inputs/position/table",
    "inputs/types/table",
    "inputs/norm/scale",
  } <= shared
  separate_count = params.count(generator) + params.count(discriminator)
  assert params.count(model) == separate_count - sum(
    params.named_params(generator)[n].size for n in shared
  )


@pytest.mark.parametrize("size", [0.0001, 1e-300])
def test_a_generator_without_width_is_refused(size):
  with pytest.raises(UserError, match="config.model.generator_size: found"):
    electra.derive_generator(electra.VARIANTS["electra-small"], size)


def test_generators_have_the_papers_sizes():
  assert electra.GENERATORS["electra-small"].dims.embed == 64
  assert electra.GENERATORS["electra-small"].embed == 128
  for name in ("electra-base", "electra-large"):
    dims = electra.GENERATORS[name].dims
    assert dims.embed == 256
    assert dims.mlp == 1024
    assert dims.heads == 4


def test_losses_of_deberta_v3_train_separate_parts_of_the_token_table():
  """The discriminator's table is the sum of the generator's and a difference that starts at zero.

  The generator's loss has gradients only for its table, and the discriminator's only for the
  difference.
  """
  variant = shrink(deberta_rtd.VARIANTS["deberta-v3-base"])
  assert not np.any(tiny.model(variant, family=deberta_rtd, noisy=False).embed.table[...])
  model = tiny.model(variant, family=deberta_rtd)
  data = batch()
  weights = jnp.zeros((B, T)).at[:, 2:4].set(1.0)
  data |= {"encoder_target_tokens": data["encoder_input_tokens"], "encoder_loss_weights": weights}

  def losses(arrays):
    _, sums = electra_objective.Objective()(params.with_arrays(model, arrays), data)
    return sums["loss"], sums["discriminator_loss"]

  def networks(arrays):
    loss_model = params.with_arrays(model, arrays)
    generator, discriminator = loss_model.networks()
    return loss_model(data), generator(data)["logits"], discriminator(data)["logits"]

  arrays = params.arrays(model)
  generator_gradients, discriminator_gradients = jax.tree.map(
    np.asarray, jax.jit(jax.jacrev(losses))(arrays)
  )
  for name in arrays:
    assert generator_gradients[name].any() == name.startswith("generator/"), name
    assert discriminator_gradients[name].any() == (not name.startswith("generator/")), name
  joint, generator_logits, discriminator_logits = jax.jit(networks)(arrays)
  np.testing.assert_allclose(joint["generator_logits"], generator_logits, atol=1e-6)
  np.testing.assert_allclose(joint["logits"], discriminator_logits, atol=1e-5)
  generator, discriminator = model.networks()
  assert [type(network) for network in (generator, discriminator)] == [deberta.Model] * 2
  assert generator.variant.dims.layers == 1
  assert discriminator.variant.head == "discriminator"


def test_number_of_modernberts_layers_need_not_be_a_multiple_of_its_period():
  variant = shrink(modernbert.VARIANTS["modernbert-base"])
  variant = dataclasses.replace(variant, dims=dataclasses.replace(variant.dims, layers=5))
  model = tiny.model(variant, family=modernbert, noisy=False)
  assert model.variant.design.windows == (None, 3, None, 3, None)
  assert [p["theta"] for p in model.variant.design.position] == [
    160_000.0,
    10_000.0,
    160_000.0,
    10_000.0,
    160_000.0,
  ]
  norms = [
    n.split("/")[2] for n in params.named_params(model) if "in_norm" in n and "self_attention" in n
  ]
  assert norms == [f"self_attention_{layer}" for layer in range(1, 5)]


def test_position_scheme_before_the_layers_applies_once_in_modernbert():
  """ModernBERT lists the position scheme of each layer, but such a scheme must not be repeated."""
  variant = shrink(modernbert.VARIANTS["modernbert-base"])
  learned = {"name": "learned", "length": 16}
  model = tiny.model(variant, family=modernbert, noisy=False, design={"position": learned})
  assert [n for n in params.named_params(model) if "position" in n] == ["inputs/position/table"]
  with pytest.raises(
    UserError, match="config.model.design.position: found .*'learned'.* mixed with others"
  ):
    tiny.model(variant, family=modernbert, noisy=False, design={"position": [learned, "rope"]})
