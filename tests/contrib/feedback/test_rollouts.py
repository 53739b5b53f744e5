"""Log-probabilities of rollouts equal those of the training forward on any layout of devices."""

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from t5x_like.contrib.feedback import rewards
from t5x_like.contrib.feedback.objectives._rollouts import completion_log_probabilities
from t5x_like.contrib.feedback.training.rollouts import build_answer_function, compile_run_step
from t5x_like.data import loader, task_features
from t5x_like.data import task as tasks
from t5x_like.errors import UserError
from t5x_like.models import llama, t5
from t5x_like.nn import params
from t5x_like.objectives import flatten_rows
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from tests.models.families import Case, model, shrink

B = 4
K = 3  # completions of a prompt
N = 6  # tokens of a completion
EOS = 1


def case(architecture):
  if architecture == "decoder":
    return Case("llama", "llama", shrink(llama.VARIANTS["llama3.1-8b"]))
  return Case("t5", "t5", shrink(t5.VARIANTS["t5-v1_1-small"]))


def prompts(architecture, vocab):
  """Prompts of unequal lengths in the rows of the task, with ids of the model."""
  arguments = {
    "name": "prompts",
    "prompt_length": 5,
    "new_tokens": N,
    "completions": K,
    "architecture": architecture,
  }
  features = task_features.declare(arguments)
  batch = {name: np.zeros((B, *feature.shape), feature.dtype) for name, feature in features.items()}
  generator = np.random.default_rng(0)
  side = architecture.split("_")[0]
  for row, length in enumerate((5, 2, 3, 4)):
    positions = slice(5 - length, 5) if side == "decoder" else slice(0, length)
    batch[f"{side}_input_tokens"][row, :, positions] = generator.integers(3, vocab, length)
    batch[f"{side}_segment_ids"][row, :, positions] = 1
  if side == "encoder":
    batch["decoder_segment_ids"][..., :1] = 1
  else:
    is_prompt = batch["decoder_segment_ids"][..., :5]
    batch["decoder_positions"][..., :5] = np.maximum(is_prompt.cumsum(-1) - 1, 0)
  return batch


@pytest.mark.parametrize("architecture", ["decoder", "encoder_decoder"])
def test_log_probabilities_equal_the_forwards_on_every_layout(architecture):
  family = case(architecture)
  transformer = model(family)
  arrays = params.arrays(transformer)
  batch = prompts(architecture, family.variant.vocab_size)
  answers = []
  for axes, devices in (({"data": 1}, 1), ({"data": 2, "tensor": 2}, 4)):
    rules = Rules.make(make_mesh(axes, jax.devices()[:devices]))
    placed = {name: jax.device_put(x, rules.batch()) for name, x in batch.items()}
    shards = rules.param_shardings(params.named_params(transformer))
    split = {name: jax.device_put(x, shards[name]) for name, x in arrays.items()}
    answer = build_answer_function(transformer, rules, seed=7, ends=(EOS,))
    answers.append(jax.device_get(answer(split, placed, 3)))
  single, sharded = answers
  np.testing.assert_array_equal(single["decoder_target_tokens"], sharded["decoder_target_tokens"])
  np.testing.assert_allclose(
    single["decoder_log_probabilities"], sharded["decoder_log_probabilities"], atol=1e-4
  )

  rows = flatten_rows(single)
  weights = single["decoder_loss_weights"][..., -N:]
  forward = jax.jit(
    lambda rows: completion_log_probabilities(transformer.outputs(rows)["logits"], rows, (B, K, N))
  )(rows)
  np.testing.assert_allclose(single["decoder_log_probabilities"], forward * weights, atol=1e-4)
  tokens = single["decoder_target_tokens"][..., -N:]
  assert len(np.unique(tokens[0, :, 0])) > 1, "the same completion for every row"
  ended = (tokens * weights == EOS).any(-1)
  assert (weights.sum(-1)[~ended] == N).all()
  assert ((tokens == EOS) * weights).sum(-1).max() <= 1
  later = answer(split, placed, 4)
  assert (np.asarray(later["decoder_target_tokens"]) != single["decoder_target_tokens"]).any(), (
    "the step is in the key"
  )


@pytest.mark.parametrize("architecture", ["decoder", "encoder_decoder"])
def test_a_prompts_rows_hold_its_ids_positions_and_record(architecture, tmp_path):
  source = dict(
    source="sums:9", cache=str(tmp_path), prompt="{a}+{b}=", fields=["sum"], fields_length=32
  )
  sizes = dict(prompt_length=8, new_tokens=3, completions=2, architecture=architecture)
  built = tasks.build("prompts", "train", **source, **sizes)
  assert built.features == task_features.declare({"name": "prompts", **sizes, "fields_length": 32})
  batch = next(loader.eval_batches(built, batch_size=4))
  vocabulary = built.vocabulary
  side = architecture.split("_")[0]
  for row, example in enumerate(built.examples([])[:4]):
    real = batch[f"{side}_segment_ids"][row, 1] > 0
    ids = batch[f"{side}_input_tokens"][row, 1][real].tolist()
    if architecture == "decoder":
      assert ids[1:] == vocabulary.encode(example["inputs"])
      assert np.flatnonzero(real)[-1] == 7  # prompts end at the last of the 8 positions
      assert batch["decoder_positions"][row, 1][real].tolist() == list(range(len(ids)))
    else:
      assert ids == [*vocabulary.encode(example["inputs"]), vocabulary.eos_id]
      assert batch["decoder_input_tokens"][row, 1, 0] == vocabulary.decoder_start_id
    (record,) = rewards.unpack_fields(batch["fields"][row : row + 1])
    assert record == {"sum": example["record"]["sum"]}
  assert not batch["decoder_loss_weights"].any()


def test_prompts_mix_if_their_lengths_agree(tmp_path):
  def build_mixture(**changes):
    shared = dict(
      name="prompts",
      source="sums:9",
      cache=str(tmp_path),
      prompt_length=8,
      new_tokens=3,
      completions=2,
    )
    sums = dict(prompt="{a}+{b}=", fields=["sum"], fields_length=32)
    copies = dict(prompt="{a}", fields=["a", "b"], fields_length=48, **changes)
    parts = {"sums": sums, "copies": copies}
    return tasks.build("mixture", "train", parts=parts, shared=shared, period=4)

  built = build_mixture()
  batch = next(loader.train_batches(built, batch_size=4, seed=0))
  field_names = [tuple(record) for record in rewards.unpack_fields(batch["fields"])]
  assert sorted(field_names) == [("a", "b"), ("a", "b"), ("sum",), ("sum",)]
  for row, fields in enumerate(field_names):
    prompt_ids = batch["decoder_input_tokens"][row, 1][batch["decoder_segment_ids"][row, 1] > 0]
    has_plus = "+" in built.vocabulary.decode(prompt_ids.tolist()[1:])
    assert has_plus == (fields == ("sum",))
  with pytest.raises(
    UserError, match="config.task.parts.sums: found another length of .* expected the same"
  ):
    compile_run_step(ConfigDict({"evals": {}}), None, build_mixture(new_tokens=4))
