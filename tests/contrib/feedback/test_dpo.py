"""DPO follows its formula, raises the margin of preferred answers and keeps its reference."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import json_lines
import more
from t5x_like import evaluate, recipes, train, vocabularies
from t5x_like.abstract_model import build_model
from t5x_like.contrib.feedback.objectives.dpo import Objective
from t5x_like.data import loader, task, task_features
from t5x_like.models import gpt
from t5x_like.nn import lora, params
from t5x_like.nn.linear import ADAPTERS, without_adapters
from t5x_like.report.writer import read_metrics
from t5x_like.training import checks
from t5x_like.training.build import build_parts
from t5x_like.training.resolve import resolve
from tests.models.families import Case, model, shrink
from tests.recipes import nano_decoder  # with the variant that the runs are of
from tests.refusals import refuses
from tests.runs import load_tensors

BYTES = vocabularies.load("bytes")
WORDS = "ten green bottles stood upon a wall and one of them fell".split()
PAIR = {"prompt": "a", "chosen": "b", "rejected": "c"}
B = 3
T = 8


def build(folder, records, **arguments):
  json_lines.write(folder / "pairs.jsonl", records)
  options = {"cache": str(folder / "cache"), "length": 64} | arguments
  return task.build("preferences", "train", source=f"jsonl:{folder}/pairs.jsonl", **options)


def message(role, content):
  return {"role": role, "content": content}


def test_rows_have_weights_only_on_the_answers(tmp_path):
  talk = [message("user", "Hi!"), message("assistant", "Hello.")]
  question = [*talk, message("user", "So?")]
  good = message("assistant", "Good.")
  bad = message("assistant", "No")
  records = [
    {"prompt": "Hi!", "chosen": "Hello.", "rejected": "No"},
    {"prompt": question, "chosen": "Good.", "rejected": "No"},
    {"prompt": None, "chosen": [*question, good], "rejected": talk},
    {"prompt": question, "chosen": [good], "rejected": [bad]},  # as TRL's data sets have it
  ]
  first = "User: Hi!\n\nAssistant:"
  second = f"{first} Hello.\n\nUser: So?\n\nAssistant:"
  expected = [
    [(first, " Hello."), (first, " No")],
    [(second, " Good."), (second, " No")],
    [(second, " Good."), (first, " Hello.")],
    [(second, " Good."), (second, " No")],
  ]
  preferences = build(tmp_path, records, length=96)
  assert preferences.features == task_features.declare({"name": "preferences", "length": 96})
  batch = next(loader.eval_batches(preferences, batch_size=4))
  for row, side in np.ndindex(4, 2):
    prompt, answer = expected[row][side]
    targets = batch["decoder_target_tokens"][row, side]
    answer_ids = targets[batch["decoder_loss_weights"][row, side] > 0]
    assert BYTES.decode(targets) == prompt + answer
    assert BYTES.decode(answer_ids) == answer
    assert answer_ids[-1] == BYTES.eos_id
    assert batch["decoder_input_tokens"][row, side, 0] == vocabularies.start_id(BYTES)


def test_margins_of_the_data_belong_to_their_pairs(tmp_path):
  records = [PAIR | {"better_by": 0.5}, PAIR | {"rejected": "cc", "better_by": 1}]
  preferences = build(tmp_path, records, margin="better_by")
  declared = {"name": "preferences", "length": 64, "margin": "better_by"}
  assert preferences.features == task_features.declare(declared)
  batch = next(loader.eval_batches(preferences, batch_size=2))
  assert batch["margin"].tolist() == [0.5, 1.0]
  assert batch["margin"].dtype == np.float32


@pytest.mark.parametrize(
  ("changes", "arguments", "words"),
  [
    ({"m": "2"}, {"margin": "m"}, ("'2'", "'m'")),
    ({"rejected": None}, {}, ("'rejected'", "prompt, chosen")),
    ({"chosen": [{"role": "user"}]}, {}, ("'content'", "role")),
    ({"rejected": "b"}, {}, ("1 records skipped (the same answer twice)",)),
    (
      {side: [message("user", side), message("assistant", side)] for side in PAIR},
      {"prompt": None},
      ("1 records skipped (answers to different prompts)",),
    ),
    ({"chosen": ""}, {}, ("1 records skipped (empty answer)",)),
    ({"prompt": ""}, {}, ("1 records skipped (empty prompt)",)),
    ({}, {"prompt": None}, ("text", "'chosen'")),
    ({"chosen": "b" * 64}, {}, ("chosen: 1 over 64",)),
    ({"prompt": "a" * 64}, {"too_long": "truncate"}, ("found 64",)),
  ],
)
def test_bad_pairs_are_refused(changes, arguments, words, tmp_path):
  record = {name: value for name, value in (PAIR | changes).items() if value is not None}
  with refuses(*words):
    build(tmp_path, [record], **arguments)


def test_label_smoothing_without_beta_is_refused():
  with refuses("beta 0.0", "label_smoothing 0.1"):
    Objective(beta=0.0, label_smoothing=0.1)


def test_a_task_of_single_rows_is_refused():
  overrides = [
    'model={"name": "gpt", "variant": "gpt2-tiny", "vocab_size": 384, "layers": "scan"}',
    'task={"name": "causal_lm", "store": "builtin", "length": 32}',
    "objective.name=dpo",
  ]
  config = resolve(recipes.load("tests/recipes/nano.py", overrides))
  causal_task = task.build(split="train", **config.task.to_dict())
  with refuses(
    "dpo needs examples of several rows", "task causal_lm makes one row", "objective decoder"
  ):
    checks.check_task(config, build_parts(config), causal_task)


def draw_batch(case):
  generator = np.random.default_rng(5)
  tokens = generator.integers(3, case.variant.vocab_size, (B, 2, T + 1)).astype(np.int32)
  first = np.array([[2, 5], [1, 3], [6, 2]])[..., None]
  last = np.array([[7, 8], [4, 8], [8, 6]])[..., None]
  positions = np.arange(T)
  return {
    "decoder_input_tokens": tokens[..., :-1],
    "decoder_target_tokens": tokens[..., 1:],
    "decoder_segment_ids": (positions < last).astype(np.int32),
    "decoder_loss_weights": ((positions >= first) & (positions < last)).astype(np.float32),
  }


@pytest.mark.parametrize("adapters", more.beyond(1, [True, False]))
def test_loss_and_gradients_follow_the_formula(adapters):
  """Equation 7 is computed on log-softmax of all logits."""
  case = Case("gpt", "gpt", shrink(gpt.VARIANTS["gpt2"]))
  base = model(case)
  batch = draw_batch(case)
  beta = 0.3
  smoothing = 0.1
  if adapters:
    policy = lora.add_adapters(base, ("query", "wi"), 2, 4.0, jax.random.key(0))
    arrays = {n: x + 0.3 * n.endswith("lora_b") for n, x in params.arrays(policy).items()}
    trained = {name: x for name, x in arrays.items() if name.endswith(ADAPTERS)}
  else:
    policy = base
    arrays = {name: x * 1.1 for name, x in params.arrays(base).items()}
    trained = arrays

  def log_probabilities(model):
    rows = {name: x.reshape(2 * B, T) for name, x in batch.items()}
    log_p = jax.nn.log_softmax(model(rows)["logits"])
    log_p = jnp.take_along_axis(log_p, rows["decoder_target_tokens"][..., None], -1)[..., 0]
    return (log_p * rows["decoder_loss_weights"]).sum(-1).reshape(B, 2)

  @jax.jit
  def formula(trained):
    def loss(trained):
      merged = without_adapters(params.with_arrays(policy, arrays | trained), merged=True)
      ratios = log_probabilities(merged) - log_probabilities(base)
      margins = beta * (ratios[:, 0] - ratios[:, 1])
      right = jax.nn.log_sigmoid(margins)
      wrong = jax.nn.log_sigmoid(-margins)
      return -((1 - smoothing) * right + smoothing * wrong).sum(), margins

    return jax.value_and_grad(loss, has_aux=True)(trained)

  @jax.jit
  def objective(trained):
    def loss(trained):
      learner = params.with_arrays(policy, arrays | trained)
      if not adapters:
        learner.reference = base
      return Objective(beta=beta, label_smoothing=smoothing)(learner, batch)

    return jax.value_and_grad(loss, has_aux=True)(trained)

  (expected, margins), expected_gradients = formula(trained)
  (loss, sums), gradients = objective(trained)
  assert np.abs(margins).min() > 1e-3
  np.testing.assert_allclose([loss, sums["loss"]], [expected, expected], rtol=1e-5)
  np.testing.assert_allclose(sums["margin"], margins.sum(), rtol=1e-5)
  assert sums["weights"] == B
  assert sums["correct"] == (margins > 0).sum()
  for name, gradient in expected_gradients.items():
    largest = max(1.0, np.abs(gradient).max())
    np.testing.assert_allclose(gradients[name], gradient, atol=1e-5 * largest, err_msg=name)


@pytest.mark.parametrize(
  ("also", "copied"), [(["scores/*", "head/*/*"], False), (["decoder/*norm*"], True)]
)
def test_a_reference_is_copied_where_more_than_adapters_is_trained(also, copied):
  """Without its adapters, a model with trained norms is not the one that the run began with."""
  config = nano_decoder.get_config()
  config.model = config.model.to_dict() | {"vocab_size": 384}
  config.objective = {"name": "dpo"}
  config.tuning = {"name": "lora", "also": also}
  named = params.named_params(build_model(config))
  assert any(name.startswith("reference/") for name in named) == copied


def pair_flags(folder, name, **changes) -> list[str]:
  """Return flags of a run on pairs whose preferred answer repeats the prompt, against `no`."""
  rows = [{"prompt": f"{a} {b}", "chosen": a, "rejected": "no"} for a in WORDS for b in WORDS]
  file = folder / "pairs.jsonl"
  json_lines.write(file, rows[:24])
  source = f"jsonl:train={file},validation={file}"
  values = {
    "task": {"name": "preferences", "source": source, "cache": f"{folder}/cache", "length": 64},
    "objective": {"name": "dpo", "beta": 0.5},
    "evals": {"loss": {}},
    "schedule": {"name": "constant", "learning_rate": 1e-3},
    "model.dropout": 0.0,
    "total_steps": 6,
    "eval_every": 3,
    "checkpoint.every": 3,
  } | changes
  flags = [f"--config.{slot}={json.dumps(value)}" for slot, value in values.items()]
  return ["--config=tests/recipes/nano_decoder.py", f"--workdir={folder}/{name}", *flags]


def train_on_pairs(folder, name, **changes):
  assert train.main(pair_flags(folder, name, **changes)) == 0
  return folder / name


def copied_names(tensors) -> dict[str, str]:
  """Return the names of the reference's parameters with those of the policy's."""
  copies = [name for name in tensors if name.startswith("params/reference/")]
  assert copies
  return {name: name.replace("reference/", "") for name in copies}


@pytest.mark.more
def test_the_margin_rises_and_the_reference_stays(tmp_path, compiled):
  run = train_on_pairs(tmp_path, "run")
  rows = read_metrics(run)
  margins = [row["train/margin"] for row in rows if "train/margin" in row]
  assert abs(margins[0]) < 1e-5
  assert margins[-1] == max(margins) > 0.5
  prefix = "eval/pairs_preferences"
  early_scores, late_scores = [row for row in rows if f"{prefix}/margin" in row]
  reference_score = f"{prefix}/reference_chosen_log_probability"
  assert late_scores[reference_score] == pytest.approx(early_scores[reference_score], abs=1e-3)
  assert late_scores[f"{prefix}/accuracy"] > 0.9
  early = load_tensors(run, 3)
  late = load_tensors(run, 6)
  names = copied_names(late)
  assert all(early[copy].tobytes() == late[copy].tobytes() for copy in names)
  assert any(early[name].tobytes() != late[name].tobytes() for name in names.values())
  assert names.keys() == {name for name in late if "reference" in name}
  assert evaluate.main([f"--workdir={run}"]) == 0


@pytest.mark.more
def test_a_run_that_starts_from_another_has_its_weights_as_the_reference(tmp_path, compiled):
  """Where adapters alone are trained there is no copy."""
  run = train_on_pairs(tmp_path, "run", total_steps=3)
  start = {"init.workdir": str(run), "total_steps": 1, "evals": {}}
  still = {"schedule.learning_rate": 0.0, "optimizer.weight_decay": 0.0}
  late = load_tensors(run, 3)
  after = load_tensors(train_on_pairs(tmp_path, "next", **start, **still), 1)
  for copy, name in copied_names(late).items():
    assert after[copy].tobytes() == after[name].tobytes() == late[name].tobytes(), name
  adapters = {"tuning.name": "lora"}
  lora_run = train_on_pairs(tmp_path, "lora", **start, **adapters)
  assert not any("reference" in name for name in load_tensors(lora_run, 1))
