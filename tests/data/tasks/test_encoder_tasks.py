"""Fine-tuning tasks for encoders have the right rows and labels, and losses equal to scipy's."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import special
from tokenizers import processors

import published
import tiny
from refusals import refuses
from t5x_like import vocabularies
from t5x_like.architectures.design import Variant
from t5x_like.data import loader, task
from t5x_like.models import bert
from t5x_like.nn.dims import Dims
from t5x_like.objectives import classification, span_qa, tagging

BYTES = vocabularies.load("bytes")
CLS = BYTES.size - 2
SEP = BYTES.size - 3
CONTEXT = "Ada Lovelace, born in 1815, wrote the first program."


def build_task(name, tmp_path, contents, file_format="tsv", split="train", **arguments):
  """Return a task on a file with the given contents."""
  path = tmp_path / "data.txt"
  path.write_text(contents)
  return task.build(
    name, split, source=f"{file_format}:{split}={path}", cache=str(tmp_path / "cache"), **arguments
  )


def read_examples(encoder_task, batch_size=2):
  """Return the features of all examples."""
  batches = list(loader.eval_batches(encoder_task, batch_size=batch_size))
  rows = {}
  for name in batches[0]:
    rows[name] = np.concatenate([batch[name] for batch in batches])[: encoder_task.num_examples]
  return rows


def build_model(head):
  """Return a tiny BERT with random parameters and the given head."""
  variant = Variant(
    Dims(16, 4, 4, 4, 32, 2),
    replace(bert.DESIGN, position={"name": "learned", "length": 128}),
    BYTES.size,
    types=2,
  )

  @jax.jit
  def init(key):
    return bert.Model(nnx.Rngs(params=key), variant=variant, head=head, layers="loop")

  return tiny.add_noise(init(jax.random.key(0)))


def evaluate(objective, head, encoder_task):
  """Evaluate a random model; return (the sums over all batches, a list of (batch, outputs)).

  In batches of two the last one may not be full.
  """
  model = build_model(head)
  totals = {}
  batches_and_outputs = []
  run = jax.jit(lambda model, batch: (objective(model, batch)[1], model(batch)))
  for batch in loader.eval_batches(encoder_task, batch_size=2):
    batch = {name: jnp.asarray(x) for name, x in batch.items() if name != "example_index"}
    sums, outputs = jax.device_get(run(model, batch))
    totals = {name: totals.get(name, 0.0) + float(x) for name, x in sums.items()}
    batches_and_outputs.append((batch, outputs))
  return totals, batches_and_outputs


PAIRS = "a\tb\tlabel\none\ttwo words\tyes\nthree\tfour\tno\nfive six seven eight\tnine\tyes\n"
PAIR_FIELDS = {"text": "{a}", "pair": "{b}", "labels": ["no", "yes"]}


def test_pairs_are_joined_and_classified(tmp_path):
  encoder_task = build_task("classification", tmp_path, PAIRS, length=24, **PAIR_FIELDS)
  rows = read_examples(encoder_task)
  first = [CLS, *BYTES.encode("one"), SEP, *BYTES.encode("two words"), SEP]
  assert rows["encoder_input_tokens"][0].tolist() == first + [0] * (24 - len(first))
  assert rows["encoder_token_types"][0].tolist() == [0] * 5 + [1] * 10 + [0] * 9
  assert rows["label"].tolist() == [1, 0, 1]
  assert rows["example_weights"].tolist() == [1, 1, 1]
  third = [CLS, *BYTES.encode("five six seven eight")[:17], SEP, *BYTES.encode("nine"), SEP]
  assert rows["encoder_input_tokens"][2].tolist() == third  # the longer text is truncated
  head = {"name": "classification", "labels": 2}
  sums, batches_and_outputs = evaluate(classification.Objective(), head, encoder_task)
  logits = np.concatenate([outputs["logits"] for _, outputs in batches_and_outputs])[:3]
  expected = -special.log_softmax(logits, axis=1)[[0, 1, 2], [1, 0, 1]].sum()
  assert abs(sums["loss"] - expected) < 1e-4
  assert sums["weights"] == 3


PAIRS_WITH_EMPTY_TEXTS = PAIRS + "\tthree\tno\n \t\tyes\nfour\t\tno\n"


def test_examples_with_an_empty_text_are_skipped_in_training(tmp_path):
  encoder_task = build_task("classification", tmp_path, PAIRS_WITH_EMPTY_TEXTS, **PAIR_FIELDS)
  assert encoder_task.num_examples == 3


def test_test_split_includes_examples_with_an_empty_text(tmp_path):
  """A submission needs a line for every example."""

  def build_test(name, **arguments):
    return build_task(name, tmp_path, PAIRS_WITH_EMPTY_TEXTS, split="test", **arguments)

  encoder_task = build_test("classification", **PAIR_FIELDS)
  rows = read_examples(encoder_task, 4)
  texts = [example["text"] for example in encoder_task.examples(())]
  assert texts[3:] == [["", "three"], ["", ""], ["four", ""]]
  assert rows["label"].tolist() == [1, 0, 1, 0, 1, 0]
  expected_rows = [
    [CLS, SEP, *BYTES.encode("three"), SEP],
    [CLS, SEP, SEP],
    [CLS, *BYTES.encode("four"), SEP, SEP],
  ]
  assert [row[row > 0].tolist() for row in rows["encoder_input_tokens"][3:]] == expected_rows
  options = {"text": "{a}", "options": ["{a}", "{b}"], "labels": ["no", "yes"], "choices": 2}
  assert build_test("multiple_choice", **options).num_examples == 6
  encoder_task = build_test("text_to_text", inputs="a: {a} b: {b}", targets="{label}", packed=False)
  inputs = [example["inputs"] for example in encoder_task.examples(())]
  assert inputs[3:] == ["a:  b: three", "a:  b: ", "a: four b: "]


def test_loss_of_a_regression_is_the_squared_error(tmp_path):
  text = "a\tscore\none\t2.5\ntwo\t-1\nthree\t0\n"
  encoder_task = build_task(
    "classification", tmp_path, text, text="{a}", label_field="score", length=16
  )
  assert read_examples(encoder_task)["label"].tolist() == [2.5, -1.0, 0.0]
  assert encoder_task.features["label"].dtype == "float32"
  head = {"name": "classification", "labels": 1}
  sums, batches_and_outputs = evaluate(classification.Objective(), head, encoder_task)
  scores = np.concatenate([outputs["logits"] for _, outputs in batches_and_outputs])[:3, 0]
  assert abs(sums["loss"] - np.square(scores - [2.5, -1, 0]).sum()) < 1e-4
  assert sums["weights"] == 3


TAG_COLUMN = {"file_format": "conll", "tags_field": "1", "tags": ["O", "B"]}


def test_word_without_tokens_becomes_unk_with_its_tag(tmp_path):
  directory = str(published.write(tmp_path / "bert", "bert"))
  text = "the B\n\u200b O\nfox B\n"
  encoder_task = build_task("tagging", tmp_path, text, length=8, vocabulary=directory, **TAG_COLUMN)
  rows = read_examples(encoder_task, 1)
  ids = vocabularies.load(directory)
  first = [ids.cls_id, *ids.encode("the"), ids.unk_id, *ids.encode("fox"), ids.sep_id]
  assert rows["encoder_input_tokens"][0, : len(first)].tolist() == first
  is_target = rows["encoder_loss_weights"][0] > 0
  assert rows["encoder_target_tokens"][0][is_target].tolist() == [1, 0, 1]


def test_the_tag_of_a_word_is_at_its_first_token(tmp_path):
  text = "Ada B\nwrote O\n\nIn O\nParis B\n\nwith O\nBob B\n"
  encoder_task = build_task("tagging", tmp_path, text, length=12, **TAG_COLUMN)
  rows = read_examples(encoder_task)
  assert rows["encoder_input_tokens"][0].tolist() == [CLS, *BYTES.encode("Ada wrote"), SEP, 0]
  assert rows["encoder_loss_weights"][0].tolist() == [0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]
  assert rows["encoder_target_tokens"][0, [1, 4]].tolist() == [1, 0]
  sums, batches_and_outputs = evaluate(
    tagging.Objective(), {"name": "tokens", "labels": 2}, encoder_task
  )
  expected = 0.0
  for batch, outputs in batches_and_outputs:
    log_p = special.log_softmax(outputs["logits"], axis=-1)
    targets = np.asarray(batch["encoder_target_tokens"])[..., None]
    target_log_p = np.take_along_axis(log_p, targets, -1)[..., 0]
    expected -= (target_log_p * batch["encoder_loss_weights"]).sum()
  assert abs(sums["loss"] - expected) < 1e-4
  assert sums["weights"] == 6


def format_squad(*answers):
  """Return SQuAD's JSON with one question for each answer (text, start); "" is no answer."""
  questions = []
  for i, (text, start) in enumerate(answers):
    gold = [{"text": text, "answer_start": start}] if text else []
    questions.append({"id": str(i), "question": "Who?", "answers": gold})
  paragraph = {"context": CONTEXT, "qas": questions}
  return json.dumps({"data": [{"title": "t", "paragraphs": [paragraph]}]})


def test_answers_are_labelled_in_their_windows(tmp_path):
  answers = [(text, CONTEXT.index(text)) for text in ("Ada Lovelace", "1815", "program")]
  contents = format_squad(*answers, ("", 0))
  encoder_task = build_task(
    "span_qa", tmp_path, contents, file_format="squad", length=40, stride=10
  )
  rows = read_examples(encoder_task)
  labelled = set()
  for tokens, types, start, end in zip(
    rows["encoder_input_tokens"],
    rows["encoder_token_types"],
    rows["span_start"],
    rows["span_end"],
  ):
    assert tokens[0] == CLS
    assert tokens[5] == SEP
    assert BYTES.decode(tokens[1:5]) == "Who?"
    assert (start > 0) == (end > 0)
    assert (types[start : end + 1] == (start > 0)).all()
    if start:
      labelled.add(BYTES.decode(tokens[start : end + 1]).strip())
  assert labelled == {"Ada Lovelace", "1815", "program"}
  windows_of_first_question = rows["encoder_input_tokens"][: encoder_task.num_examples // 4]
  contexts = [BYTES.decode(row[6:].tolist()) for row in windows_of_first_question]
  assert contexts[0].startswith("Ada Lovelace")
  assert any("program." in text for text in contexts)
  sums, batches_and_outputs = evaluate(span_qa.Objective(), "spans", encoder_task)
  expected = 0.0
  for batch, outputs in batches_and_outputs:
    is_padding = np.asarray(batch["encoder_input_tokens"]) == 0
    for end in ("start", "end"):
      logits = np.where(is_padding, -1e9, outputs[f"{end}_logits"])
      log_p = special.log_softmax(logits, axis=1)
      targets = np.asarray(batch[f"span_{end}"])[:, None]
      target_log_p = np.take_along_axis(log_p, targets, axis=1)[:, 0]
      expected -= 0.5 * (target_log_p * batch["example_weights"]).sum()
  assert abs(sums["loss"] / expected - 1) < 1e-4
  assert sums["weights"] == encoder_task.num_examples


@pytest.fixture
def roberta(tmp_path):
  """Return a RoBERTa vocabulary's (directory, tokenizer); the tokenizer joins pairs of texts."""
  directory = published.write(tmp_path / "roberta", "roberta")
  # The older file format does not define how pairs are joined, so the family's default applies.
  assert vocabularies.load(str(directory)).count_pair_separators() == 2
  tokenizer = published.byte_level(published.BART)
  tokenizer.post_processor = processors.RobertaProcessing(
    ("</s>", 2), ("<s>", 0), add_prefix_space=False
  )
  tokenizer.save(str(directory / "tokenizer.json"))
  return directory, tokenizer


def test_pairs_are_joined_as_by_the_published_tokenizer(roberta, tmp_path):
  """RoBERTa has two separators between the texts of a pair."""
  directory, tokenizer = roberta
  options = {"vocabulary": str(directory), "length": 24}
  encoder_task = build_task("classification", tmp_path, PAIRS, **PAIR_FIELDS, **options)
  rows = read_examples(encoder_task)["encoder_input_tokens"].tolist()
  pairs = [("one", "two words"), ("three", "four"), ("five six seven eight", "nine")]
  for row, pair in zip(rows, pairs, strict=True):
    ids = tokenizer.encode(*pair).ids
    assert ids.count(2) == 3
    assert row == ids + [1] * (24 - len(ids))


def test_questions_and_contexts_are_joined_with_the_published_separators(roberta, tmp_path):
  directory, tokenizer = roberta
  answers = format_squad(("Ada", 0), ("1815", CONTEXT.index("1815")))
  options = {"vocabulary": str(directory), "length": 80, "stride": 40}
  rows = read_examples(build_task("span_qa", tmp_path, answers, file_format="squad", **options))
  labelled_texts = set()
  for row, start, end in zip(rows["encoder_input_tokens"], rows["span_start"], rows["span_end"]):
    if start:
      labelled_texts.add(tokenizer.decode(row[start : end + 1].tolist()).strip())
  assert labelled_texts == {"Ada", "1815"}
  question_length = len(tokenizer.encode("Who?").ids)
  assert rows["encoder_input_tokens"][0, : 5 + question_length].tolist().count(2) == 2


TEXT = {"text": "{a}"}
TAGS = {"file_format": "jsonl", "tags": ["O"]}


@pytest.mark.parametrize(
  "contents, arguments, words",
  [
    (PAIRS, TEXT | {"labels": ["no", "yse"]}, ("'yes' in field 'label'", "'yse'")),
    (PAIRS, TEXT, ("found 'yes' in field 'label'", "a number")),
    (PAIRS, {"text": "{c}"}, ("found no field 'c' among a, b, label",)),
    (PAIRS, PAIR_FIELDS | {"length": 4}, ("config.task.length: found 4",)),
    (PAIRS, TEXT | {"labels": ["yes", "yes"]}, ("config.task.labels: ", "a repeated name")),
    (PAIRS, TEXT | {"labels": []}, ("config.task.labels: found none",)),
    ("a\tlabel\nx\tnan\n", TEXT, ("found 'nan' in field 'label'", "finite")),
    ("a\tlabel\nx\t1e39\n", TEXT, ("found '1e39' in field 'label'", "finite")),
  ],
)
def test_bad_input_of_classification_is_refused(tmp_path, contents, arguments, words):
  with refuses(*words):
    build_task("classification", tmp_path, contents, **arguments)


@pytest.mark.parametrize(
  "contents, arguments, name",
  [
    ("a X\n", TAG_COLUMN, "found label 'X' in field '1'"),
    ('{"tokens": [null], "tags": ["O"]}', TAGS, "found null at tokens.0"),
    ('{"tokens": [["a"]], "tags": ["O"]}', TAGS, "found list in field 'tokens'"),
    ('{"tokens": ["a", "b"], "tags": ["O"]}', TAGS, "found 2 items in 'tokens'"),
  ],
)
def test_bad_input_of_tagging_is_refused(tmp_path, contents, arguments, name):
  with refuses(name):
    build_task("tagging", tmp_path, contents, **arguments)


@pytest.mark.parametrize(
  "contents, arguments, words",
  [
    (format_squad(("Bob", 0)), {}, ("found 'Ada' at position 0", "'Bob'")),
    (format_squad(("Ada", 0)), {"length": 20}, ("config.task.length: found 20 with stride 128",)),
    ("[]", {}, ("found a JSON array",)),
    (format_squad(("program.", -8)), {}, ("found '' at position -8 of the context",)),
    (format_squad(("Ada", None)), {}, ("in field 'answers'", "text, answer_start")),
    (format_squad((3, 0)), {}, ("in field 'answers'", "text, answer_start")),
  ],
)
def test_bad_input_of_span_qa_is_refused(tmp_path, contents, arguments, words):
  with refuses(*words):
    build_task("span_qa", tmp_path, contents, file_format="squad", **arguments)
