"""Denoising tasks for decoders join the inputs and targets of the tasks for encoder-decoders."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

import corpora
from refusals import refuses
from t5x_like.data import task
from t5x_like.models import t5_lm
from t5x_like.nn.dims import Dims
from t5x_like.quiet_tensorflow import tf

DENOISING = [
  ("span_corruption", {"inputs_length": 48}),
  ("span_corruption", {"inputs_length": 48, "targets_length": 30, "random_roll": True}),
  ("denoising", {"inputs_length": 32, "style": "replace_spans"}),
  ("denoising", {"inputs_length": 32, "style": "drop_tokens"}),
  ("denoising", {"inputs_length": 32, "style": "deshuffling"}),
  ("ul2", {"length": 40}),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
  folder = tmp_path_factory.mktemp("corpus")
  corpora.write(folder / "train", 2000, [30, 9, 40, 3])
  return str(folder)


def build_and_read(root, name, arguments, form=None, seed=3):
  """Return the task and a batch of its first 12 examples in two epochs."""
  denoising_task = task.build(name, "train", store=root, as_decoder=form, **arguments)
  index = tf.range(12, dtype=tf.int64)
  batch = denoising_task.set_shapes(denoising_task.batch(index, index % 2, seed))
  assert batch.keys() == denoising_task.features.keys()
  return denoising_task, {key: value.numpy() for key, value in batch.items()}


@pytest.mark.parametrize("form", ["causal", "prefix"])
@pytest.mark.parametrize(("name", "arguments"), DENOISING, ids=str)
def test_inputs_and_targets_are_one_sequence(name, arguments, form, root):
  pair_task, pairs = build_and_read(root, name, arguments)
  decoder_task, batch = build_and_read(root, name, arguments, form)
  assert decoder_task.fingerprint != pair_task.fingerprint
  assert decoder_task.numbering == pair_task.numbering
  assert ("decoder_causal_attention" in batch) == (form == "prefix")
  length = batch["decoder_target_tokens"].shape[1]
  for row in range(12):
    inputs = [token for token in pairs["encoder_input_tokens"][row].tolist() if token]
    targets = [token for token in pairs["decoder_target_tokens"][row].tolist() if token]
    sequence = inputs + targets
    padding = length - len(inputs) - len(targets)
    input_weights = [0] * len(inputs) if form == "prefix" else [1] * len(inputs)
    expected = {
      "input_tokens": [1, *sequence[:-1]] + [0] * padding,
      "target_tokens": sequence + [0] * padding,
      "segment_ids": [1] * len(sequence) + [0] * padding,
      "loss_weights": input_weights + [1] * len(targets) + [0] * padding,
      "causal_attention": [1] * (len(inputs) + 1) + [0] * (len(targets) - 1 + padding),
    }
    for key in batch:
      assert batch[key][row].tolist() == expected[key.removeprefix("decoder_")], key


def test_padding_has_no_effect_and_only_inputs_attend_ahead(root):
  _, batch = build_and_read(root, "ul2", {"length": 40}, "prefix")
  dims = Dims(embed=16, heads=2, kv_heads=2, head_dim=8, mlp=16, layers=1)
  variant = dataclasses.replace(t5_lm.VARIANTS["prefix-tiny"], dims=dims, vocab_size=32_000)
  model = t5_lm.Model(nnx.Rngs(params=0), variant=variant)
  run = jax.jit(lambda model, batch: model(batch)["logits"])
  batch["decoder_input_tokens"] = batch["decoder_input_tokens"] % 32_000
  logits = np.asarray(run(model, batch))
  real_BT = batch["decoder_segment_ids"] > 0
  shortest = int(real_BT.sum(axis=1).argmin())
  size = int(real_BT[shortest].sum())
  assert size < real_BT.shape[1]
  cut = {key: value[shortest : shortest + 1, :size] for key, value in batch.items()}
  np.testing.assert_allclose(run(model, cut)[0], logits[shortest, :size], rtol=2e-4, atol=2e-5)
  changed_tokens = batch["decoder_input_tokens"].copy()
  changed_tokens[shortest, size - 1] += 1  # the last input of the targets
  changed_logits = np.asarray(run(model, batch | {"decoder_input_tokens": changed_tokens}))
  differs_T = (changed_logits[shortest, :size] != logits[shortest, :size]).any(-1)
  assert differs_T.tolist() == [False] * (size - 1) + [True]


def test_as_decoder_is_refused_where_it_does_not_apply(root):
  arguments = {"length": 24, "documents_end": "nothing", "as_decoder": "causal"}
  with refuses("config.task.as_decoder: found 'causal', but this task does not make the inputs"):
    task.build("causal_lm", "train", store=root, **arguments)
  with refuses("config.task.as_decoder: found 'decoder'"):
    task.build("span_corruption", "train", store=root, inputs_length=24, as_decoder="decoder")
