"""`predict` generates and fills as the model does when called with one text without padding."""

import functools
import io
import json
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
from t5x_like.inference import capacity, generation, masks, predictors, strategies
from t5x_like.nn import params
from t5x_like.saved_model import open_saved_model
from t5x_like.training.build import build_parts
from t5x_like.training.resolve import resolve
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary
from tests import topics
from tests.runs import REPO, environment

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled")]

DECODER = "tests/recipes/nano_decoder.py"
ENCODER = "tests/recipes/nano_encoder.py"
PROMPTS = ["def add(a, b):", "x", "Returns the sum of all elements of an array, or 0", "  é\u2028ß"]
NEW = 6  # new tokens of an answer


def train_two_steps(folder, recipe: str):
  """Train a run of two steps in a folder and return the folder."""
  flags = ("--config.total_steps=2", "--config.checkpoint.every=2")
  assert train.main([f"--config={recipe}", f"--workdir={folder}", *flags]) == 0
  return folder


@pytest.fixture(scope="module")
def decoder(tmp_path_factory, compiled):
  return train_two_steps(tmp_path_factory.mktemp("decoder"), DECODER)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory, compiled):
  return train_two_steps(tmp_path_factory.mktemp("encoder"), ENCODER)


def copy_with_config(workdir, folder, change):
  """Return a copy of a workdir whose saved config is changed."""
  copy = shutil.copytree(workdir, folder)
  config = json.loads((copy / "config.json").read_text())
  change(config)
  (copy / "config.json").write_text(json.dumps(config))
  return copy


@pytest.fixture
def ask(tmp_path):
  """Return a function that calls `predict` with lines of text and returns its rows."""

  def call(workdir, lines, *flags: str):
    source = tmp_path / "lines.txt"
    output = tmp_path / "out.jsonl"
    source.write_text("\n".join(lines) + "\n")
    files = [f"--input={source}", f"--output={output}"]
    assert predict.main([f"--workdir={workdir}", *files, *flags]) == 0
    return read_rows(output)

  return call


def read_rows(path) -> list[dict]:
  # Not `json_lines.read`, because a text may contain another line separator.
  return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def load(workdir):
  """Return (model, vocabulary) of a finished run."""
  run = open_saved_model(str(workdir))
  _, arrays = run.restore()
  model = params.with_arrays(run.model, jax.device_get(arrays))
  return model, vocabularies.load(str(workdir / "vocabulary"))


def decode_to_end(vocabulary, ids) -> str:
  """Return the text of generated ids before EOS, without special ids."""
  ids = ids.tolist()
  ids = ids[: ids.index(vocabulary.eos_id)] if vocabulary.eos_id in ids else ids
  return vocabulary.decode([i for i in ids if i not in vocabulary.special_ids])


def prompt_of(vocabulary, text: str) -> dict:
  return {"decoder_input_tokens": jnp.array([[vocabulary.eos_id, *vocabulary.encode(text)]])}


@jax.jit
def logits(model, batch):
  return model(batch)["logits"]


def call_compiled(function, model, batch, **options):
  """Compile and call a function; return its results as NumPy arrays."""
  return jax.tree.map(np.asarray, jax.jit(functools.partial(function, **options))(model, batch))


def log_probability(model, prompt: dict, ids) -> float:
  """Return the log-probability of new tokens after a prompt by one forward pass."""
  tokens = np.concatenate([prompt["decoder_input_tokens"], ids[None]], axis=1)
  log_p = jax.nn.log_softmax(logits(model, {"decoder_input_tokens": tokens}))[0]
  first = tokens.shape[1] - len(ids)
  return sum(float(log_p[first + i - 1, token]) for i, token in enumerate(ids))


def greedy_ids(model, vocabulary, prompt: dict) -> np.ndarray:
  return call_compiled(greedy, model, prompt, max_length=NEW, eos=(vocabulary.eos_id,))[0]


def test_greedy_answers_do_not_depend_on_the_batch(decoder, ask):
  model, vocabulary = load(decoder)
  flags = (f"--max_new_tokens={NEW}", "--batch_size=3")
  answers = ask(decoder, PROMPTS, *flags)
  for text, answer in zip(PROMPTS, answers, strict=True):
    prompt = prompt_of(vocabulary, text)
    ids = greedy_ids(model, vocabulary, prompt)
    assert answer["input"] == text
    assert answer["prediction"] == decode_to_end(vocabulary, ids)
    assert answer["score"] == pytest.approx(log_probability(model, prompt, ids), abs=1e-3)
  assert len({answer["prediction"] for answer in answers}) == len(PROMPTS)
  assert ask(decoder, PROMPTS, *flags, "--top_k=1") == answers


def test_one_beam_is_a_greedy_search():
  assert strategies.choose_strategy(beams=1) == strategies.choose_strategy() == strategies.Greedy()


def test_beams_are_the_hypotheses_of_the_search(decoder, ask):
  model, vocabulary = load(decoder)
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
    tokens, scores = call_compiled(
      beam_search, model, prompt_of(vocabulary, text), max_length=NEW, **options
    )
    # Fewer than two hypotheses may have ended.
    count = min(2, int((scores[0] > -np.inf).sum()))
    assert answer["predictions"] == [decode_to_end(vocabulary, ids) for ids in tokens[0, :count]]
    np.testing.assert_allclose(answer["scores"], scores[0, :count], atol=1e-3)
    assert len(set(answer["predictions"])) == count
  assert len(answers[0]["predictions"]) == 2


def test_beams_of_an_encoder_decoder_fill_sentinels(trained, ask):
  from tests.recipes import nano  # noqa: F401 -- registers the variant of the run

  model, vocabulary = load(trained)
  lines = ["Returns the <extra_id_0>.", "short"]
  answers = ask(trained, lines, "--beams=2", "--max_new_tokens=5")
  for line, answer in zip(lines, answers):
    ids = jnp.array([[*vocabularies.encode_sentinels(vocabulary, line), vocabulary.eos_id]])
    tokens, scores = call_compiled(
      beam_search, model, {"encoder_input_tokens": ids}, max_length=5, beams=2
    )
    assert answer["prediction"] == vocabulary.decode(tokens[0, 0].tolist())
    assert answer["score"] == pytest.approx(float(scores[0, 0]), abs=1e-3)
  assert answers[0]["filled"] == generation.fill(lines[0], answers[0]["prediction"])
  assert "filled" not in answers[1]


SAMPLING = (
  "--samples=3",
  "--top_p=0.95",
  "--temperature=0.9",
  "--seed=7",
  f"--max_new_tokens={NEW}",
)


def assert_same_samples(actual: dict, expected: dict) -> None:
  assert actual["predictions"] == expected["predictions"]
  np.testing.assert_allclose(actual["scores"], expected["scores"], atol=1e-3)


@pytest.mark.more
def test_a_sample_depends_only_on_seed_text_and_number(decoder, ask):
  answers = ask(decoder, PROMPTS, *SAMPLING)
  samples = {text for answer in answers for text in answer["predictions"]}
  assert len(samples) > len(PROMPTS)
  assert {len(answer["scores"]) for answer in answers} == {3}
  for actual, expected in zip(ask(decoder, PROMPTS, *SAMPLING, "--batch_size=5"), answers):
    assert_same_samples(actual, expected)
  longer = "a longer line than before, so that batches are divided differently"
  changed_lines = [longer, PROMPTS[1], "y", PROMPTS[3]]
  changed_answers = ask(decoder, changed_lines, *SAMPLING, "--batch_size=8")
  assert_same_samples(changed_answers[1], answers[1])
  assert_same_samples(changed_answers[3], answers[3])
  single = ask(decoder, PROMPTS, "--seed=7", *SAMPLING[1:])
  other_seed = ask(decoder, PROMPTS, *SAMPLING, "--seed=8")
  for answer, first_sample, other_answer in zip(answers, single, other_seed, strict=True):
    assert first_sample["prediction"] == answer["predictions"][0]
    assert other_answer["predictions"] != answer["predictions"]


WITHOUT_TENSORFLOW = """
import sys

# Importing these modules fails, as if they were not installed.
sys.modules["tensorflow"] = sys.modules["tensorflow_datasets"] = None
from t5x_like import predict
from tests.recipes import nano_decoder
sys.exit(predict.main(sys.argv[1:]))
"""


def test_one_device_draws_what_eight_do_and_needs_no_tensorflow(decoder, ask, tmp_path):
  answers = ask(decoder, PROMPTS, *SAMPLING)
  source = tmp_path / "lines.txt"
  output = tmp_path / "alone.jsonl"
  flags = (f"--workdir={decoder}", f"--input={source}", f"--output={output}", *SAMPLING)
  process = subprocess.run(
    [sys.executable, "-c", WITHOUT_TENSORFLOW, *flags],
    cwd=REPO,
    env=environment(1),
    capture_output=True,
    text=True,
    timeout=600,
  )
  assert process.returncode == 0, process.stderr[-1500:]
  for row, answer in zip(read_rows(output), answers, strict=True):
    assert_same_samples(row, answer)


def test_attention_is_bidirectional_in_the_prompt_of_a_prefix_lm(decoder, ask, tmp_path):
  def mark(saved):
    saved["features"]["decoder_causal_attention"] = saved["features"]["decoder_input_tokens"]

  prefix_lm = copy_with_config(decoder, tmp_path / "prefix", mark)
  model, vocabulary = load(decoder)
  answers = ask(prefix_lm, PROMPTS[1:3], f"--max_new_tokens={NEW}")
  for text, answer in zip(PROMPTS[1:], answers):
    prompt = prompt_of(vocabulary, text)
    prompt["decoder_causal_attention"] = jnp.ones_like(prompt["decoder_input_tokens"])
    ids = greedy_ids(model, vocabulary, prompt)
    assert answer["prediction"] == decode_to_end(vocabulary, ids)
  assert answers != ask(decoder, PROMPTS[1:3], f"--max_new_tokens={NEW}")


class FixedAnswer(strategies.Greedy):
  """Answers every text with the same ids, of which some are special or beyond the vocabulary."""

  def __call__(self, model, batch, numbers_B2, *, max_length, eos, stop):
    B = len(numbers_B2)
    vocabulary = ByteVocabulary()
    hidden = [0, vocabulary.size - 1, vocabulary.size + 5]
    ids = [*vocabulary.encode("ab"), *hidden, vocabulary.eos_id, 100]
    return jnp.tile(jnp.array(ids), (B, 1, 1)), jnp.zeros((B, 1))


def test_answers_end_at_eos_and_hide_special_ids(decoder):
  run = open_saved_model(str(decoder))
  _, arrays = run.restore()
  continuation = generation.Continuation(
    run.model, ByteVocabulary(), run.identity["features"], FixedAnswer(), new_tokens=7
  )
  ids = continuation.encode(PROMPTS, origin="-")
  answers = continuation(rows.Runner(run.model, run.rules, arrays, 8), ids, PROMPTS)
  assert [answer["prediction"] for answer in answers] == ["ab"] * len(PROMPTS)


# Masks


def test_masked_tokens_have_the_probabilities_of_the_model(encoder, ask):
  model, vocabulary = load(encoder)
  cls_id = vocabularies.special_id(vocabulary, "cls")
  sep_id = vocabularies.special_id(vocabulary, "sep")
  mask_id = vocabularies.special_id(vocabulary, "mask")
  lines = ["The [MASK] of", "a<mask>c and <extra_id_0><mask>, in a text that is a little longer"]
  answers = ask(encoder, lines, "--top_k=4")
  for line, answer, mask_count in zip(lines, answers, (1, 3), strict=True):
    ids = masks.encode_masks(vocabulary, line, mask_id, ("[MASK]", "<mask>"))
    ids = np.array([cls_id, *ids, sep_id])
    positions = np.flatnonzero(ids == mask_id)
    p_TV = np.asarray(jax.nn.softmax(logits(model, {"encoder_input_tokens": ids[None]})))[0]
    assert len(answer["predictions"]) == len(positions) == mask_count
    for p_V, position, candidates in zip(p_TV[positions], positions, answer["predictions"]):
      ordinary = [
        i for i in np.argsort(-p_V) if i < vocabulary.size and i not in vocabulary.special_ids
      ]
      assert [c["piece"] for c in candidates] == vocabulary.pieces_of(ordinary[:4])
      probabilities = [c["probability"] for c in candidates]
      np.testing.assert_allclose(probabilities, p_V[ordinary[:4]], rtol=1e-3)
      ids[position] = ordinary[0]
    assert answer["input"] == line
    assert answer["filled"] == vocabulary.decode(ids[1:-1].tolist())


def test_a_mask_stands_between_the_ids_of_the_texts_around_it():
  vocabulary = ByteVocabulary()
  ids = masks.encode_masks(vocabulary, "a [MASK]b", 7, ["[MASK]"])
  assert ids == [*vocabulary.encode("a "), 7, *vocabulary.encode("b")]


# Refusals


@pytest.fixture
def refusal(capsys, tmp_path):
  """Call the command with the content of a file, which it refuses; return the error's line."""

  def call(workdir, content: str | bytes, *flags: str, name: str = "lines.txt") -> str:
    source = tmp_path / name
    source.write_bytes(content.encode() if isinstance(content, str) else content)
    capsys.readouterr()
    files = [f"--input={source}", f"--output={tmp_path / 'out'}"]
    assert predict.main([f"--workdir={workdir}", *files, *flags]) == 2
    assert not (tmp_path / "out").exists()
    (line,) = capsys.readouterr().err.splitlines()
    return line

  return call


@pytest.mark.parametrize(
  "run, content, flags, parts",
  [
    # Texts.
    ("trained", "\n \n", (), ("lines.txt", "no text")),
    ("trained", b"good\n\xff\xfe", (), ("lines.txt", "not UTF-8 at byte 5")),
    ("trained", "short\n" + "long " * 40, (), ("text 2", "201 tokens", "at most 32")),
    ("encoder", "a [MASK]\nno mask\n", (), ("text 2 ('no mask')", "<extra_id_0>")),
    ("encoder", "[MASK]" * 80, (), ("82 tokens",)),
    (
      "decoder",  # longer than the model's positions
      "short\n" + 60 * "x",
      ("--max_new_tokens=5",),
      ("text 2", "60 tokens", "--max_new_tokens=5: the model has positions for only 64"),
    ),
    # Options.
    ("trained", "a", ("--batch_size=0",), ("--batch_size=0", "at least 1")),
    ("trained", "a", ("--output=/proc/no/out",), ("/proc/no/out",)),
    ("encoder", "a [MASK]\n", ("--beams=2",), ("--beams=2: the model is an encoder",)),
    ("encoder", "[MASK]", ("--top_k=0",), ("--top_k=0",)),
    ("decoder", "a", ("--min_new_tokens=33",), ("32 tokens are generated; raise",)),
    ("trained", "a", ("--temperature=1e-30",), ("--temperature=",)),
    ("trained", "a", ("--temperature=inf",), ("--temperature=",)),
    ("trained", "a", ("--top_k=0",), ("--top_k=",)),
    ("trained", "a", ("--top_p=nan",), ("--top_p=",)),
    ("trained", "a", ("--min_p=0",), ("--min_p=",)),
    ("trained", "a", ("--beams=2", "--length_penalty=1e30"), ("expected -10 to 10",)),
    ("trained", "a", ("--beams=2", "--length_penalty=-1e30"), ("expected -10 to 10",)),
    ("trained", "a", ("--beams=2", "--length_penalty=nan"), ("expected -10 to 10",)),
    # Memory.
    (
      "trained",
      "a <extra_id_0>",
      ("--max_new_tokens=1000000000",),
      ("--max_new_tokens=1000000000: found room for", "with 1 rows, --batch_size=32, --beams=1"),
    ),
    ("trained", "a", ("--samples=1000000000",), ("found room for 0 with 1,000,000,000 rows",)),
    ("trained", "a", ("--beams=1000000000",), ("--beams=1000000000 and",)),
  ],
)
def test_texts_and_options_that_a_model_cannot_use_are_refused(
  run, content, flags, parts, refusal, request
):
  line = refusal(request.getfixturevalue(run), content, *flags)
  for part in parts:
    assert part in line


@pytest.mark.parametrize(
  "second_line, parts",
  [
    ('{"text": ', ("not JSON",)),
    ("[1]", ("found a JSON list",)),
    ('{"txt": "a"}', ("found no key 'text' (did you mean 'txt'?)", "--text_field")),
    ('{"text": 5}', ("found 5 under the key 'text', expected a string",)),
  ],
)
def test_a_line_that_is_no_object_with_text_is_refused(second_line, parts, decoder, refusal):
  line = refusal(decoder, f'{{"text": "a"}}\n{second_line}\n', name="lines.jsonl")
  for part in ("line 2: ", *parts):
    assert part in line


def test_a_missing_input_is_refused(trained, tmp_path, capsys):
  flags = [f"--input={tmp_path}/lines.txt", f"--output={tmp_path}/out"]
  assert predict.main([f"--workdir={trained}", *flags]) == 2
  assert f"{tmp_path}/lines.txt: cannot be read: No such file" in capsys.readouterr().err


def test_an_output_that_cannot_be_written_is_refused_before_the_model_is_read(tmp_path, refusal):
  line = refusal(tmp_path / "none", "a", f"--output={tmp_path}/missing/out")
  assert f"no directory {tmp_path}/missing; make it first" in line


def test_a_head_that_fills_no_masks_is_refused(encoder, refusal, tmp_path):
  def classify(config):
    config["model"]["head"] = "classification"

  classifier = copy_with_config(encoder, tmp_path / "classifier", classify)
  assert "head (SequenceClassifier) does not predict masked" in refusal(classifier, "[MASK]\n")


def test_generated_tokens_must_fit_into_free_memory(trained, refusal, monkeypatch):
  # Bytes of a token: copies of the cache, rows, layers, keys and values, width, bytes of a number.
  slot = 2 * 8 * 2 * 2 * 32 * 2
  monkeypatch.setattr(capacity, "free_memory", lambda: 200 * slot)
  assert "found room for 67 with 1 rows" in refusal(trained, "a", "--max_new_tokens=300")


# Files


def test_neither_the_input_nor_a_file_of_the_workdir_is_overwritten(trained, refusal, tmp_path):
  source = tmp_path / "lines.txt"
  (tmp_path / "link").symlink_to(source)
  for output in (source, tmp_path / "link"):
    assert "would overwrite the input" in refusal(trained, "mine\n", f"--output={output}")
    assert source.read_text() == "mine\n"
  config = (trained / "config.json").read_bytes()
  line = refusal(trained, "mine\n", f"--output={trained}/config.json")
  assert "belongs to the workdir" in line
  assert (trained / "config.json").read_bytes() == config


def test_a_link_to_a_device_stays(trained, tmp_path):
  source = tmp_path / "lines.txt"
  source.write_text("mine\n")
  null = tmp_path / "null"
  null.symlink_to("/dev/null")
  flags = [f"--input={source}", f"--output={null}", "--max_new_tokens=2"]
  assert predict.main([f"--workdir={trained}", *flags]) == 0
  assert null.is_symlink()
  assert null.is_char_device()


def test_lone_surrogates_are_escaped_and_counted(trained, tmp_path, capsys):
  source = tmp_path / "lines.jsonl"
  output = tmp_path / "out.jsonl"
  source.write_text('{"text": "a\\ud83d"}\n{"text": "b"}\n')
  flags = [f"--input={source}", f"--output={output}", "--max_new_tokens=2"]
  assert predict.main([f"--workdir={trained}", *flags]) == 0
  assert [row["input"] for row in read_rows(output)] == ["a\ud83d", "b"]
  assert "\\ud83d" in output.read_text()
  assert capsys.readouterr().err.count("1 line with lone surrogates") == 1


def test_predict_reads_standard_input_and_writes_standard_output(decoder, ask, monkeypatch, capsys):
  flags = ("--max_new_tokens=2", "--text_field=body", "--input=-", "--output=-")
  monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"body": "x"}\n')))
  capsys.readouterr()
  assert predict.main([f"--workdir={decoder}", *flags]) == 0
  output = capsys.readouterr()
  (answer,) = ask(decoder, ["x"], "--max_new_tokens=2")
  assert [json.loads(line) for line in output.out.splitlines()] == [answer]
  assert "1 lines" in output.err


# Rows


def test_rows_of_any_lengths_have_few_shapes_and_keep_their_order(decoder):
  parts = open_saved_model(str(decoder))
  shapes = []

  def sum_rows(model, batch):
    shapes.append(batch["tokens"].shape)
    sum_B = jnp.sum(batch["tokens"] * batch["valid"], axis=1)
    return sum_B + batch["extra"], jnp.sum(batch["valid"], axis=1)

  lengths = np.random.default_rng(0).integers(1, 101, 60)
  ids = [[n] * n for n in lengths.tolist()]
  arrays = {name: np.zeros(x.shape, x.dtype) for name, x in params.arrays(parts.model).items()}
  run = rows.Runner(parts.model, parts.rules, arrays, 16)
  outputs = run(
    sum_rows,
    ids,
    {"extra": np.arange(60, dtype=np.int32)},
    lambda length: rows.padded_length(length, 100),
  )
  assert [(int(a), int(b)) for a, b in outputs] == [
    (n * n + i, n) for i, n in enumerate(lengths.tolist())
  ]
  assert sorted(shapes) == [(16, 32), (16, 64), (16, 100)]


@pytest.mark.parametrize(
  "recipe, length",
  [
    ("electra/small", 32),
    ("switch/base", 32),
    ("mixtral/8x7b", 32),
    *topics.cases("PADDED_LENGTHS").items(),
  ],
)
def test_unusual_families_answer_with_their_padded_length(recipe, length):
  """ELECTRA fills with its generator, some cores have a minimum length, and experts have slots.

  The models are evaluated abstractly.
  """
  config = resolve(recipes.load(f"configs/{recipe}.py:debug"))
  parts = build_parts(config)
  model = parts.model
  task = tasks.build(split="validation", **config.task.to_dict())
  features = {name: list(feature.shape) for name, feature in task.features.items()}
  predictor = predictors.build_predictor(model, task.vocabulary, features, {})

  def run(function, ids, extras, padded):
    assert padded(len(ids[0])) == length
    token = jax.ShapeDtypeStruct((len(ids), length), jnp.int32)
    outputs = jax.eval_shape(function, model, {"tokens": token, "valid": token} | extras)
    return [tuple(np.zeros(x.shape[1:], x.dtype) for x in outputs) for _ in ids]

  # The attributes of a `rows.Runner`; its `transform` leaves generation to prepare the model.
  run.rules = parts.rules
  run.model = model
  run.batch_size = 8
  run.transform = lambda change: run
  (answer,) = predictor(run, predictor.encode(["a [MASK] b"], "-"), ["a [MASK] b"])
  assert {"input"} < set(answer)
