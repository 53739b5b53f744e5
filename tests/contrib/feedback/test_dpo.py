"""DPO follows its formula, raises the margin of preferred answers and keeps its reference."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import more
from t5x_like import evaluate, train, vocabularies
from t5x_like.abstract_model import build_model
from t5x_like.contrib.feedback.objectives.dpo import Objective
from t5x_like.data import loader, task, task_features
from t5x_like.errors import UserError
from t5x_like.nn import lora, params
from t5x_like.nn.linear import ADAPTERS, without_adapters
from t5x_like.report.writer import read_metrics
from tests.models.families import Case, model, shrunk
from tests.recipes import nano_decoder  # with the variant that the runs are of
from tests.runs import assert_same_bits, load_tensors

BYTES = vocabularies.load("bytes")
WORDS = "ten green bottles stood upon a wall and one of them fell".split()


def pairs(folder, n=24):
  """Return pairs whose preferred answer repeats the prompt, against `no`."""
  rows = [{"prompt": f"{a} {b}", "chosen": a, "rejected": "no"} for a in WORDS for b in WORDS][:n]
  (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  return f"jsonl:train={folder}/pairs.jsonl,validation={folder}/pairs.jsonl"


def build(folder, records=None, **arguments):
  source = pairs(folder)
  if records is not None:
    (folder / "pairs.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
  options = {"source": source, "cache": str(folder / "cache"), "length": 64, **arguments}
  return task.build("preferences", "train", **options)


def test_rows_have_weights_on_the_answers_alone(tmp_path):
  talk = [{"role": "user", "content": "Hi!"}, {"role": "assistant", "content": "Hello."}]
  longer_talk = [*talk, {"role": "user", "content": "So?"}]
  answer = {"role": "assistant", "content": "Good."}
  records = [
    {"prompt": "Hi!", "chosen": "Hello.", "rejected": "No"},
    {"prompt": longer_talk, "chosen": "Good.", "rejected": "No"},
    {"prompt": None, "chosen": [*longer_talk, answer], "rejected": talk},
    # as TRL's data sets have it
    {"prompt": longer_talk, "chosen": [answer], "rejected": [answer | {"content": "No"}]},
  ]
  built = build(tmp_path, records, length=96)
  assert built.features == task_features.declare({"name": "preferences", "length": 96})
  batch = next(loader.eval_batches(built, batch_size=4))
  texts = [[BYTES.decode(ids) for ids in row] for row in batch["decoder_target_tokens"]]
  first = "User: Hi!\n\nAssistant: Hello."
  prompt_text = "User: Hi!\n\nAssistant: Hello.\n\nUser: So?\n\nAssistant:"
  assert texts[0] == [first, "User: Hi!\n\nAssistant: No"]
  assert texts[1] == texts[3] == [prompt_text + " Good.", prompt_text + " No"]
  assert texts[2] == [
    prompt_text + " Good.",
    first,
  ]
  for row, answers in enumerate(
    [(" Hello.", " No"), (" Good.", " No"), (" Good.", " Hello."), (" Good.", " No")]
  ):
    for side, text in enumerate(answers):
      learned = batch["decoder_loss_weights"][row, side] > 0
      answer_ids = batch["decoder_target_tokens"][row, side][learned]
      assert BYTES.decode(answer_ids) == text
      assert answer_ids[-1] == BYTES.eos_id
      assert batch["decoder_input_tokens"][row, side][0] == vocabularies.start_id(BYTES)


def test_margins_of_the_data_belong_to_their_pairs(tmp_path):
  records = [
    {"prompt": "a", "chosen": "b", "rejected": "c" * n, "better_by": n / 2} for n in (1, 2)
  ]
  built = build(tmp_path, records, margin="better_by")
  assert built.features == task_features.declare(
    {"name": "preferences", "length": 64, "margin": "better_by"}
  )
  batch = next(loader.eval_batches(built, batch_size=2))
  assert batch["margin"].tolist() == [0.5, 1.0]
  assert batch["margin"].dtype == np.float32


@pytest.mark.parametrize(
  ("record", "arguments", "message"),
  [
    (
      {"prompt": "a", "chosen": "b", "rejected": "c", "m": "2"},
      {"margin": "m"},
      "found '2' in field 'm', expected a",
    ),
    ({"prompt": "a", "chosen": "b"}, {}, "found no field 'rejected' among prompt, chosen"),
    (
      {"prompt": "a", "chosen": [{"role": "user"}], "rejected": "b"},
      {},
      "found no 'content' among role",
    ),
    (
      {"prompt": "a", "chosen": "b", "rejected": "b"},
      {},
      "1 records skipped .the same answer twice.",
    ),
    (
      {
        side: [{"role": "user", "content": side}, {"role": "assistant", "content": side}]
        for side in ("chosen", "rejected")
      },
      {"prompt": None},
      "1 records skipped .answers to different prompts.",
    ),
    ({"prompt": "a", "chosen": "", "rejected": "b"}, {}, "1 records skipped .empty answer."),
    ({"prompt": "", "chosen": "b", "rejected": "c"}, {}, "1 records skipped .empty prompt."),
    (
      {"prompt": "a", "chosen": "b", "rejected": "c"},
      {"prompt": None},
      "found text in field 'chosen', expected a conv",
    ),
    ({"prompt": "a", "chosen": "b" * 64, "rejected": "c"}, {}, "chosen: 1 over 64, the longest"),
    (
      {"prompt": "a" * 64, "chosen": "b", "rejected": "c"},
      {"too_long": "truncate"},
      "found 64, expected more",
    ),
  ],
)
def test_bad_pairs_are_refused_in_one_line(record, arguments, message, tmp_path):
  with pytest.raises(UserError, match=message) as error:
    build(tmp_path, [record], **arguments)
  assert "\n" not in str(error.value)


def test_bad_options_are_refused_in_one_line():
  with pytest.raises(UserError, match="found beta 0.0 and label_smoothing 0.1"):
    Objective(beta=0.0, label_smoothing=0.1)


def draw_batch(case, B=3, T=8):
  generator = np.random.default_rng(5)
  tokens = generator.integers(3, case.variant.vocab_size, (B, 2, T + 1)).astype(np.int32)
  first = np.array([[2, 5], [1, 3], [6, 2]])
  last = np.array([[7, 8], [4, 8], [8, 6]])
  positions = np.arange(T)
  return {
    "decoder_input_tokens": tokens[..., :-1],
    "decoder_target_tokens": tokens[..., 1:],
    "decoder_segment_ids": (positions < last[..., None]).astype(np.int32),
    "decoder_loss_weights": (
      (positions >= first[..., None]) & (positions < last[..., None])
    ).astype(np.float32),
  }


@pytest.mark.parametrize("adapters", more.beyond(1, [True, False]))
def test_loss_and_gradients_follow_the_formula(adapters):
  """Equation 7 is computed on log-softmax of all logits, row by row."""
  from t5x_like.models import gpt

  case = Case("gpt", "gpt", shrunk(gpt.VARIANTS["gpt2"]))
  base = model(case)
  batch = draw_batch(case)
  beta = 0.3
  smoothing = 0.1
  if adapters:
    policy = lora.add_adapters(base, ("query", "wi"), 2, 4.0, jax.random.key(0))
    moved = {n: x + 0.3 * n.endswith("lora_b") for n, x in params.arrays(policy).items()}
    learned = [n for n in moved if n.endswith(ADAPTERS)]
  else:
    policy = base
    moved = {n: x * 1.1 for n, x in params.arrays(base).items()}
    learned = list(moved)
  policy = params.with_arrays(policy, moved)
  if not adapters:
    policy.reference = base

  def log_probability(m, row, side):
    side_batch = {
      name: x[row, side][None] for name, x in batch.items() if name in ("decoder_input_tokens",)
    }
    side_batch["decoder_segment_ids"] = batch["decoder_segment_ids"][row, side][None]
    log_p_TV = jax.nn.log_softmax(m(side_batch)["logits"][0])
    sums = [
      log_p_TV[t, batch["decoder_target_tokens"][row, side, t]] for t in range(log_p_TV.shape[0])
    ]
    return sum(w * p for w, p in zip(batch["decoder_loss_weights"][row, side], sums))

  @jax.jit
  def formula_loss(arrays):
    def loss(arrays):
      if adapters:
        m = params.with_arrays(policy, merged | arrays)
      else:
        m = params.with_arrays(base, arrays)
      m = without_adapters(m, merged=True)
      total = 0.0
      margins = []
      for row in range(3):
        ratio = [
          log_probability(m, row, side) - log_probability(base, row, side) for side in (0, 1)
        ]
        margins.append(beta * (ratio[0] - ratio[1]))
        right = jax.nn.sigmoid(margins[-1])
        wrong = jax.nn.sigmoid(-margins[-1])
        total -= (1 - smoothing) * jnp.log(right) + smoothing * jnp.log(wrong)
      return total, jnp.stack(margins)

    merged = params.arrays(policy)
    return jax.value_and_grad(loss, has_aux=True)(arrays)

  @jax.jit
  def our_loss(arrays):
    objective = Objective(beta=beta, label_smoothing=smoothing)
    everything = params.arrays(policy)
    return jax.value_and_grad(
      lambda a: objective(params.with_arrays(policy, everything | a), batch), has_aux=True
    )(arrays)

  arrays = {name: moved[name] for name in learned}
  (loss, margins), gradients = formula_loss(arrays)
  (total, sums), our_gradients = our_loss(arrays)
  assert sums["weights"] == 3
  assert np.abs(margins).min() > 1e-3
  np.testing.assert_allclose(
    [total, sums["loss"], sums["margin"]], [loss, loss, margins.sum()], rtol=1e-5
  )
  assert sums["correct"] == (margins > 0).sum()
  for name, g in gradients.items():
    np.testing.assert_allclose(
      our_gradients[name], g, atol=1e-5 * max(1.0, np.abs(g).max()), err_msg=name
    )


def flags(folder, *more):
  values = {
    "task": {
      "name": "preferences",
      "source": pairs(folder),
      "cache": f"{folder}/cache",
      "length": 64,
    },
    "objective": {"name": "dpo", "beta": 0.5},
    "evals": {"loss": {}},
    "schedule": {"name": "constant", "learning_rate": 1e-3},
  }
  overrides = [f"--config.{slot}={json.dumps(value)}" for slot, value in values.items()]
  steps = ("--config.total_steps=6", "--config.eval_every=3", "--config.checkpoint.every=3")
  return [
    "--config=tests/recipes/nano_decoder.py",
    "--config.model.dropout=0.0",
    *overrides,
    *steps,
    *more,
  ]


@pytest.mark.parametrize(
  ("also", "copied"), [(["scores/*", "head/*/*"], False), (["decoder/*norm*"], True)]
)
def test_the_reference_has_weights_of_its_own_where_more_than_adapters_is_trained(also, copied):
  """Without its adapters, a model whose norms are trained is no longer the one that the run began
  with."""
  config = nano_decoder.get_config()
  config.model = config.model.to_dict() | {"vocab_size": 384}
  config.objective = {"name": "dpo"}
  config.tuning = {"name": "lora", "also": also}
  named = params.named_params(build_model(config))
  assert any(name.startswith("reference/") for name in named) == copied


@pytest.mark.more
def test_the_margin_rises_and_the_reference_stays(tmp_path, compiled, capsys):
  run = tmp_path / "run"
  parted = tmp_path / "parted"
  assert train.main([*flags(tmp_path), f"--workdir={run}"]) == 0, capsys.readouterr().err
  rows = read_metrics(run)
  margins = [row["train/margin"] for row in rows if "train/margin" in row]
  assert abs(margins[0]) < 1e-5
  assert margins[-1] > 0.5
  assert margins[-1] == max(margins)
  evaluated = [row for row in rows if "eval/pairs_preferences/margin" in row]
  same = {
    round(row["eval/pairs_preferences/reference_chosen_log_probability"], 3) for row in evaluated
  }
  assert len(evaluated) == 2
  assert len(same) == 1
  assert evaluated[-1]["eval/pairs_preferences/accuracy"] > 0.9
  early = load_tensors(run, 3)
  late = load_tensors(run, 6)
  copies = [name for name in late if name.startswith("params/reference/")]
  assert copies
  assert all(early[name].tobytes() == late[name].tobytes() for name in copies)
  policy_names = [name.replace("reference/", "") for name in copies]
  assert any(early[name].tobytes() != late[name].tobytes() for name in policy_names)
  assert not any("reference" in name for name in late if not name.startswith("params/"))
  assert train.main([*flags(tmp_path, "--config.total_steps=3"), f"--workdir={parted}"]) == 0
  assert train.main([*flags(tmp_path), f"--workdir={parted}"]) == 0
  assert_same_bits(run, parted, 6)
  assert evaluate.main([f"--workdir={run}"]) == 0


@pytest.mark.more
def test_a_run_that_starts_from_another_has_its_weights_as_the_reference(
  tmp_path, compiled, capsys
):
  """Adapters are merged; where adapters are trained there is no copy."""
  run = tmp_path / "run"
  assert train.main([*flags(tmp_path, "--config.total_steps=3"), f"--workdir={run}"]) == 0
  late = load_tensors(run, 3)
  copies = [name for name in late if name.startswith("params/reference/")]
  policy_names = [name.replace("reference/", "") for name in copies]
  begin = (f"--config.init.workdir={run}", "--config.total_steps=1", "--config.evals={}")
  still = ("--config.schedule.learning_rate=0.0", "--config.optimizer.weight_decay=0.0")
  arguments = [*flags(tmp_path, *begin, *still), f"--workdir={tmp_path}/next"]
  assert train.main(arguments) == 0, capsys.readouterr().err
  after = load_tensors(tmp_path / "next", 1)
  for copy, name in zip(copies, policy_names):
    assert after[copy].tobytes() == after[name].tobytes() == late[name].tobytes(), name
  adapters = [*flags(tmp_path, *begin, "--config.tuning.name=lora"), f"--workdir={tmp_path}/lora"]
  assert train.main(adapters) == 0, capsys.readouterr().err
  assert not any("reference" in name for name in load_tensors(tmp_path / "lora", 1))
