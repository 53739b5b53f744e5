"""The command for generation and masked tokens, against the model called directly, a text at a time
without padding."""

import functools
import io
import json
import re
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import predict, recipes, rows, train, vocabularies
from t5x_like.data import task as tasks
from t5x_like.decoding.beam_search import GnmtPenalty, beam_search
from t5x_like.decoding.generate import greedy
from t5x_like.decoding.sampling import MinLength
from t5x_like.inference import generation, masks, predictors, strategies
from t5x_like.nn import params
from t5x_like.saved_model import open_saved_model
from t5x_like.training.build import build_parts
from t5x_like.training.resolve import resolve
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary
from tests.runs import REPO, environment

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled")]

DECODER = "tests/recipes/nano_decoder.py"
ENCODER = "tests/recipes/nano_encoder.py"
PROMPTS = ["def add(a, b):", "x", "Returns the sum of all elements of an array, or 0", "  é\u2028ß"]
NEW = 6


def finished(folder, recipe: str):
  flags = ("--config.total_steps=2", "--config.checkpoint.every=2")
  assert train.main([f"--config={recipe}", f"--workdir={folder}", *flags]) == 0
  return folder


@pytest.fixture(scope="module")
def decoder(tmp_path_factory, compiled):
  return finished(tmp_path_factory.mktemp("decoder"), DECODER)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory, compiled):
  return finished(tmp_path_factory.mktemp("encoder"), ENCODER)


def with_saved(workdir, folder, change):
  """A copy of a workdir whose saved config is changed."""
  copy = shutil.copytree(workdir, folder)
  saved = json.loads((copy / "config.json").read_text())
  change(saved)
  (copy / "config.json").write_text(json.dumps(saved))
  return copy


@pytest.fixture
def ask(tmp_path):
  """Call the command with lines of text; return the rows of its output."""

  def call(workdir, lines, *flags: str):
    source = tmp_path / "lines.txt"
    output = tmp_path / "out.jsonl"
    source.write_text("\n".join(lines) + "\n")
    assert (
      predict.main([f"--workdir={workdir}", f"--input={source}", f"--output={output}", *flags]) == 0
    )
    return read(output)

  return call


def read(path) -> list[dict]:
  return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def opened(workdir):
  """(model, vocabulary) of a finished run."""
  run = open_saved_model(str(workdir))
  _, arrays = run.restore()
  return params.with_arrays(run.model, jax.device_get(arrays)), vocabularies.load(
    str(workdir / "vocabulary")
  )


def shown(vocabulary, ids) -> str:
  ids = ids.tolist()
  ids = ids[: ids.index(vocabulary.eos_id)] if vocabulary.eos_id in ids else ids
  return vocabulary.decode([i for i in ids if i not in vocabulary.special_ids])


def prompt_of(vocabulary, text: str) -> dict:
  return {"decoder_input_tokens": jnp.array([[vocabulary.eos_id, *vocabulary.encode(text)]])}


@jax.jit
def logits(model, batch):
  return model(batch)["logits"]


def called(function, model, batch, **options):
  """`function` compiled, and its results as arrays of numpy."""
  return jax.tree.map(np.asarray, jax.jit(functools.partial(function, **options))(model, batch))


def log_probability(model, prompt: dict, ids) -> float:
  """Of new tokens behind a prompt, all of them fed at once."""
  tokens = np.concatenate([prompt["decoder_input_tokens"], ids[None]], axis=1)
  log_p = jax.nn.log_softmax(logits(model, {"decoder_input_tokens": tokens}))[0]
  first = tokens.shape[1] - len(ids)
  return sum(float(log_p[first + i - 1, token]) for i, token in enumerate(ids))


def test_greedy_is_that_of_each_prompt_alone(decoder, ask):
  model, vocabulary = opened(decoder)
  answers = ask(decoder, PROMPTS, f"--max_new_tokens={NEW}", "--batch_size=3")
  assert [answer["input"] for answer in answers] == PROMPTS
  for text, answer in zip(PROMPTS, answers):
    prompt = prompt_of(vocabulary, text)
    ids = called(greedy, model, prompt, max_length=NEW, eos=(vocabulary.eos_id,))[0]
    assert answer["prediction"] == shown(vocabulary, ids)
    assert answer["score"] == pytest.approx(log_probability(model, prompt, ids), abs=1e-3)
  assert len({answer["prediction"] for answer in answers}) == len(PROMPTS)
  assert ask(decoder, PROMPTS, f"--max_new_tokens={NEW}", "--batch_size=3", "--top_k=1") == answers
  assert strategies.choose_strategy(beams=1) == strategies.choose_strategy() == strategies.Greedy()


def test_beams_are_those_of_the_search(decoder, ask):
  model, vocabulary = opened(decoder)
  flags = (
    "--beams=3",
    "--samples=2",
    "--length_penalty=1.5",
    "--min_new_tokens=2",
    f"--max_new_tokens={NEW}",
  )
  answers = ask(decoder, PROMPTS[:2], *flags)
  options = dict(
    beams=3, length_penalty=GnmtPenalty(1.5), transforms=(MinLength(2),), eos=(vocabulary.eos_id,)
  )
  for text, answer in zip(PROMPTS, answers):
    tokens, scores = called(
      beam_search, model, prompt_of(vocabulary, text), max_length=NEW, **options
    )
    # all others may have ended in nothing that is allowed
    count = min(2, int((scores[0] > -np.inf).sum()))
    assert answer["predictions"] == [shown(vocabulary, ids) for ids in tokens[0, :count]]
    np.testing.assert_allclose(answer["scores"], scores[0, :count], atol=1e-3)
    assert len(set(answer["predictions"])) == count
  assert len(answers[0]["predictions"]) == 2


def test_beams_of_an_encoder_decoder(trained, ask):
  from tests.recipes import nano  # noqa: F401 -- its size

  model, vocabulary = opened(trained)
  lines = ["Returns the <extra_id_0>.", "short"]
  answers = ask(trained, lines, "--beams=2", "--max_new_tokens=5")
  for line, answer in zip(lines, answers):
    ids = jnp.array([[*vocabularies.encode_sentinels(vocabulary, line), vocabulary.eos_id]])
    tokens, scores = called(
      beam_search, model, {"encoder_input_tokens": ids}, max_length=5, beams=2
    )
    assert answer["prediction"] == vocabulary.decode(tokens[0, 0].tolist())
    assert answer["score"] == pytest.approx(float(scores[0, 0]), abs=1e-3)
  assert (
    answers[0]["filled"] == generation.fill(lines[0], answers[0]["prediction"])
    and "filled" not in answers[1]
  )


SAMPLING = (
  "--samples=3",
  "--top_p=0.95",
  "--temperature=0.9",
  "--seed=7",
  f"--max_new_tokens={NEW}",
)


@pytest.mark.more
def test_a_sample_depends_on_seed_text_and_number_alone(decoder, ask):
  whole = ask(decoder, PROMPTS, *SAMPLING)
  samples = [text for answer in whole for text in answer["predictions"]]
  assert len(set(samples)) > len(PROMPTS) and all(len(answer["scores"]) == 3 for answer in whole)
  others = ["a longer line than before, so that batches are others", PROMPTS[1], "y", PROMPTS[3]]
  for lines, flag, same in (
    (PROMPTS, "--batch_size=5", (0, 1, 2, 3)),
    (others, "--batch_size=8", (1, 3)),
  ):
    again = ask(decoder, lines, *SAMPLING, flag)
    for n in same:
      assert again[n]["predictions"] == whole[n]["predictions"]
      np.testing.assert_allclose(again[n]["scores"], whole[n]["scores"], atol=1e-3)
  one = ask(decoder, PROMPTS, "--seed=7", *SAMPLING[1:])
  assert [answer["prediction"] for answer in one] == [answer["predictions"][0] for answer in whole]
  other = ask(decoder, PROMPTS, *SAMPLING, "--seed=8")
  assert all(a["predictions"] != b["predictions"] for a, b in zip(other, whole))


ALONE = """
import sys

# as if they were not installed
sys.modules["tensorflow"] = sys.modules["tensorflow_datasets"] = None
from t5x_like import predict
from tests.recipes import nano_decoder
sys.exit(predict.main(sys.argv[1:]))
"""


def test_one_device_draws_what_eight_do_and_needs_no_tensorflow(decoder, ask, tmp_path):
  whole = ask(decoder, PROMPTS, *SAMPLING)
  source = tmp_path / "lines.txt"
  output = tmp_path / "alone.jsonl"
  flags = (f"--workdir={decoder}", f"--input={source}", f"--output={output}", *SAMPLING)
  done = subprocess.run(
    [sys.executable, "-c", ALONE, *flags],
    cwd=REPO,
    env=environment(1),
    capture_output=True,
    text=True,
    timeout=600,
  )
  assert done.returncode == 0, done.stderr[-1500:]
  for one, answer in zip(read(output), whole, strict=True):
    assert one["predictions"] == answer["predictions"]
    np.testing.assert_allclose(one["scores"], answer["scores"], atol=1e-3)


def test_a_prefix_is_seen_whole(decoder, ask, tmp_path):
  def mark(saved):
    saved["features"]["decoder_causal_attention"] = saved["features"]["decoder_input_tokens"]

  prefix_lm = with_saved(decoder, tmp_path / "prefix", mark)
  model, vocabulary = opened(decoder)
  answers = ask(prefix_lm, PROMPTS[1:3], f"--max_new_tokens={NEW}")
  for text, answer in zip(PROMPTS[1:], answers):
    prompt = prompt_of(vocabulary, text)
    prompt["decoder_causal_attention"] = jnp.ones_like(prompt["decoder_input_tokens"])
    ids = called(greedy, model, prompt, max_length=NEW, eos=(vocabulary.eos_id,))[0]
    assert answer["prediction"] == shown(vocabulary, ids)
  assert answers != ask(decoder, PROMPTS[1:3], f"--max_new_tokens={NEW}")


class Fixed(strategies.Greedy):
  """Says the same to every text."""

  def __call__(self, model, batch, numbers_B2, *, max_length, eos, stop):
    B = len(numbers_B2)
    vocabulary = ByteVocabulary()
    said = [
      *vocabulary.encode("ab"),
      0,
      vocabulary.size - 1,
      vocabulary.size + 5,
      vocabulary.eos_id,
      100,
    ]
    return jnp.tile(jnp.array(said), (B, 1, 1)), jnp.zeros((B, 1))


def test_the_end_ends_and_special_ids_are_not_shown(decoder):
  run = open_saved_model(str(decoder))
  _, arrays = run.restore()
  said = generation.Continuation(run.model, ByteVocabulary(), run.identity["features"], Fixed(), 7)
  ids = said.encode(PROMPTS, "-")
  answers = said(rows.Runner(run.model, run.rules, arrays, 8), ids, PROMPTS)
  assert [answer["prediction"] for answer in answers] == ["ab"] * len(PROMPTS)


# Masks


def test_masked_tokens_have_the_probabilities_of_the_model(encoder, ask):
  model, vocabulary = opened(encoder)
  lines = ["The [MASK] of", "a<mask>c and <extra_id_0><mask>, in a text that is a little longer"]
  answers = ask(encoder, lines, "--top_k=4")
  cls_id, sep_id, mask_id = (
    vocabularies.special_id(vocabulary, name) for name in ("cls", "sep", "mask")
  )
  for line, answer, count in zip(lines, answers, (1, 3)):
    ids = masks.encode_masks(vocabulary, line, mask_id, ("[MASK]", "<mask>"))
    ids = np.array([cls_id, *ids, sep_id])
    places = np.flatnonzero(ids == mask_id)
    p = np.asarray(jax.nn.softmax(logits(model, {"encoder_input_tokens": ids[None]})))[0]
    assert len(answer["predictions"]) == len(places) == count
    for place, candidates in zip(places, answer["predictions"]):
      text = [
        i for i in np.argsort(-p[place]) if i < vocabulary.size and i not in vocabulary.special_ids
      ]
      assert [c["piece"] for c in candidates] == vocabulary.pieces_of(text[:4])
      np.testing.assert_allclose(
        [c["probability"] for c in candidates], p[place, text[:4]], rtol=1e-3
      )
      ids[place] = text[0]
    assert answer["input"] == line and answer["filled"] == vocabulary.decode(ids[1:-1].tolist())


def test_a_mask_takes_the_space_before_it_with_it():
  vocabulary = ByteVocabulary()
  assert masks.encode_masks(vocabulary, "a [MASK]b", 7, ["[MASK]"]) == [
    *vocabulary.encode("a "),
    7,
    *vocabulary.encode("b"),
  ]


# Refusals


@pytest.fixture
def refused(capsys, tmp_path):
  def call(workdir, content: str, *flags: str, name: str = "lines.txt") -> str:
    source = tmp_path / name
    source.write_text(content)
    capsys.readouterr()
    assert (
      predict.main(
        [f"--workdir={workdir}", f"--input={source}", f"--output={tmp_path / 'out'}", *flags]
      )
      == 2
    )
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and not (tmp_path / "out").exists(), errors
    return errors[0]

  return call


def test_what_an_encoder_cannot_do(encoder, refused, tmp_path):
  assert "--beams=2: the model is an encoder" in refused(encoder, "a [MASK]\n", "--beams=2")
  assert "text 2 ('no hole') has nothing to fill; write <extra_id_0>" in refused(
    encoder, "a [MASK]\nno hole\n"
  )
  assert "82 tokens" in refused(encoder, "[MASK]" * 80) and "--top_k=0" in refused(
    encoder, "[MASK]", "--top_k=0"
  )

  def classify(saved):
    saved["model"]["head"] = "classification"

  classifier = with_saved(encoder, tmp_path / "classifier", classify)
  assert "head (SequenceClassifier) says nothing about masked" in refused(classifier, "[MASK]\n")


def test_more_than_the_model_has_positions_for(decoder, trained, refused):
  line = refused(decoder, "short\n" + 60 * "x", "--max_new_tokens=5")
  assert (
    "text 2" in line
    and "60 tokens" in line
    and ("--max_new_tokens=5: the model has positions for 64") in line
  )
  assert "32 tokens are generated; raise" in refused(decoder, "short", "--min_new_tokens=33")


# Texts


@pytest.mark.parametrize(
  "line, words",
  [
    ('{"text": ', "line 2: not JSON"),
    ("[1]", "line 2: found a JSON list"),
    ('{"txt": "a"}', r"line 2: found no key 'text' \(did you mean 'txt'\?\), .*--text_field"),
    ('{"text": 5}', "line 2: found 5 under the key 'text', expected a string"),
  ],
)
def test_a_line_that_is_no_object_with_text(line, words, decoder, refused):
  assert re.search(words, refused(decoder, f'{{"text": "a"}}\n{line}\n', name="lines.jsonl"))


def test_from_standard_input_to_standard_output(decoder, ask, monkeypatch, capsys):
  flags = ("--max_new_tokens=2", "--text_field=body", "--input=-", "--output=-")
  monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"body": "x"}\n')))
  capsys.readouterr()
  assert predict.main([f"--workdir={decoder}", *flags]) == 0
  output = capsys.readouterr()
  assert [json.loads(line) for line in output.out.splitlines()] == ask(
    decoder, ["x"], "--max_new_tokens=2"
  )
  assert "1 lines" in output.err


# Rows


def test_few_shapes_and_the_order_of_the_rows(decoder):
  parts = open_saved_model(str(decoder))
  shapes = []

  def total(model, batch):
    shapes.append(batch["tokens"].shape)
    return jnp.sum(batch["tokens"] * batch["valid"], axis=1) + batch["extra"], jnp.sum(
      batch["valid"], axis=1
    )

  lengths = np.random.default_rng(0).integers(1, 101, 60)
  ids = [[n] * n for n in lengths.tolist()]
  arrays = {name: np.zeros(x.shape, x.dtype) for name, x in params.arrays(parts.model).items()}
  run = rows.Runner(parts.model, parts.rules, arrays, 16)
  found = run(
    total,
    ids,
    {"extra": np.arange(60, dtype=np.int32)},
    lambda length: rows.padded_length(length, 100),
  )
  assert [(int(a), int(b)) for a, b in found] == [
    (n * n + i, n) for i, n in enumerate(lengths.tolist())
  ]
  assert sorted(shapes) == [(16, 32), (16, 64), (16, 100)]


@pytest.mark.parametrize(
  "recipe, length",
  [("electra/small", 32), ("bigbird/base", 64), ("switch/base", 32), ("mixtral/8x7b", 32)],
)
def test_families_with_ways_of_their_own(recipe, length):
  """ELECTRA fills with its generator, BigBird's core has a least length, experts have slots: by
  abstract evaluation."""
  config = resolve(recipes.load(f"configs/{recipe}.py:debug"))
  parts = build_parts(config)
  model = parts.model
  task = tasks.build(split="validation", **config.task.to_dict())
  features = {name: list(feature.shape) for name, feature in task.features.items()}
  answers = predictors.build_predictor(model, task.vocabulary, features, {})

  def run(function, ids, extras, padded):
    assert padded(len(ids[0])) == length
    token = jax.ShapeDtypeStruct((len(ids), length), jnp.int32)
    found = jax.eval_shape(function, model, {"tokens": token, "valid": token} | extras)
    return [tuple(np.zeros(x.shape[1:], x.dtype) for x in found) for _ in ids]

  run.rules = parts.rules
  run.model = model
  run.batch_size = 8
  # generation makes that change itself where it was not made before
  run.transform = lambda change: run
  (answer,) = answers(run, answers.encode(["a [MASK] b"], "-"), ["a [MASK] b"])
  assert {"input"} < set(answer)
