"""Text-to-text tasks pack every record once per epoch, and refuse bad records in one line."""

import collections
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers

import json_lines
import published
import tiny
from refusals import refuses
from t5x_like import vocabularies
from t5x_like.architectures.design import Variant
from t5x_like.data import loader, task
from t5x_like.data.supervised.templates import Template
from t5x_like.models import t5
from t5x_like.nn.dims import Dims
from t5x_like.objectives.encoder_decoder import Objective

WORDS = "ten green bottles stood upon a wall and one of them fell".split()
# Sixty distinct pairs of a source and a target.
PAIRS = [(" ".join(WORDS[: 1 + i % 7]) + f" {i}", " ".join(WORDS[-1 - i % 5 :])) for i in range(60)]
BYTES = vocabularies.load("bytes")


@pytest.fixture
def tsv(tmp_path):
  path = tmp_path / "pairs.tsv"
  path.write_text("source\ttarget\n" + "".join(f"{a}\t{b}\n" for a, b in PAIRS))
  return path


def build_task(tmp_path, source, /, **changes):
  defaults = {
    "source": f"tsv:{source}" if isinstance(source, pathlib.Path) else source,
    "inputs": "say: {source}",
    "targets": "{target}",
    "inputs_length": 96,
    "targets_length": 80,
    "cache": str(tmp_path / "cache"),
  }
  return task.build("text_to_text", "train", **defaults | changes)


def read_epoch(text_task, seed=1):
  """Return the rows of one epoch of training."""
  return next(loader.train_batches(text_task, batch_size=text_task.num_examples, seed=seed))


def decode_pairs(features):
  """Return the texts (inputs, targets) of every segment of packed encoder-decoder rows."""
  pairs = []
  for row in range(len(features["encoder_input_tokens"])):
    encoder_segments = features["encoder_segment_ids"][row]
    decoder_segments = features["decoder_segment_ids"][row]
    for segment in range(1, encoder_segments.max() + 1):
      inputs = features["encoder_input_tokens"][row][encoder_segments == segment]
      targets = features["decoder_target_tokens"][row][decoder_segments == segment]
      for ids in (inputs, targets):
        assert ids[-1] == 1
        assert (ids != 0).all()
      pairs.append((BYTES.decode(inputs), BYTES.decode(targets)))
  return sorted(pairs)


EXPECTED = sorted((f"say: {a}", b) for a, b in PAIRS)


def test_targets_are_encoded_by_marians_target_model(tmp_path, tsv):
  directory = published.marian(tmp_path / "marian")
  text_task = build_task(
    tmp_path, tsv, vocabulary=str(directory), targets="{target} FOX", packed=False
  )
  rows = read_epoch(text_task)
  vocabulary = vocabularies.load(str(directory))
  inputs = {tuple(ids[ids != vocabulary.pad_id]) for ids in rows["encoder_input_tokens"]}
  assert inputs == {(*vocabulary.encode(f"say: {source}"), 0) for source, _ in PAIRS}
  targets = set()
  for ids, weights in zip(rows["decoder_target_tokens"], rows["decoder_loss_weights"]):
    targets.add(tuple(ids[: int(weights.sum())]))
  texts = [f"{target} FOX" for _, target in PAIRS]
  assert targets == {(*vocabulary.for_targets().encode(text), 0) for text in texts}
  assert targets != {(*vocabulary.encode(text), 0) for text in texts}


def test_rows_are_packed_as_in_seqios_documentation(tmp_path):
  ids = {"[PAD]": 0, "</s>": 1, "[UNK]": 2} | {f"w{i}": i for i in range(3, 10)}
  tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="[UNK]"))
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  tokenizer.save(str(tmp_path / "tokenizer.json"))
  rows = [{"a": "w7 w8 w5", "b": "w3 w9"}, {"a": "w8 w4 w9 w3", "b": "w4"}]
  json_lines.write(tmp_path / "rows.jsonl", rows)
  templates = {"inputs": "{a}", "targets": "{b}"}
  lengths = {"inputs_length": 10, "targets_length": 7}
  vocabulary = str(tmp_path / "tokenizer.json")
  source = f"jsonl:{tmp_path}/rows.jsonl"
  text_task = build_task(tmp_path, source, vocabulary=vocabulary, **templates, **lengths)
  row = read_epoch(text_task, seed=0)
  assert {name: "".join(str(int(x)) for x in values[0]) for name, values in row.items()} == {
    "encoder_input_tokens": "7851849310",
    "encoder_segment_ids": "1111222220",
    "encoder_positions": "0123012340",
    "decoder_target_tokens": "3914100",
    "decoder_input_tokens": "0390400",
    "decoder_loss_weights": "1111100",
    "decoder_segment_ids": "1112200",
    "decoder_positions": "0120100",
  }


def test_an_epoch_has_every_pair_once_in_packed_rows(tmp_path, tsv):
  text_task = build_task(tmp_path, tsv)
  features = read_epoch(text_task)
  assert text_task.num_examples < 30
  assert decode_pairs(features) == EXPECTED
  features_of_another_seed = read_epoch(text_task, seed=2)["encoder_input_tokens"]
  assert not np.array_equal(features_of_another_seed, features["encoder_input_tokens"])


def test_an_epoch_has_every_pair_once_in_unpacked_rows(tmp_path, tsv):
  features = read_epoch(build_task(tmp_path, tsv, packed=False))
  assert "encoder_segment_ids" not in features
  inputs = [BYTES.decode(row) for row in features["encoder_input_tokens"]]
  targets = [BYTES.decode(row) for row in features["decoder_target_tokens"]]
  assert sorted(zip(inputs, targets)) == EXPECTED


def test_a_source_is_tokenised_once_for_all_lengths(tmp_path, tsv, capsys):
  first = build_task(tmp_path, tsv)
  assert "prepared 60" in capsys.readouterr().out
  assert build_task(tmp_path, tsv, inputs_length=128).fingerprint != first.fingerprint
  assert "prepared" not in capsys.readouterr().out.replace("/prepared", "")
  assert build_task(tmp_path, tsv).fingerprint == first.fingerprint
  assert build_task(tmp_path, tsv, targets="{source}").fingerprint != first.fingerprint
  assert "prepared 60" in capsys.readouterr().out


def test_decoder_rows_hold_prompt_and_target_with_loss_on_the_target(tmp_path, tsv):
  text_task = build_task(
    tmp_path, tsv, architecture="decoder", prefix=True, inputs_length=128, targets_length=None
  )
  features = {name.removeprefix("decoder_"): x for name, x in read_epoch(text_task).items()}
  segment_ids = features["segment_ids"]
  assert not features["loss_weights"][segment_ids == 0].any()
  pairs = []
  for row, segments in enumerate(segment_ids):
    for segment in range(1, segments.max() + 1):
      sequence = {name: x[row][segments == segment] for name, x in features.items()}
      tokens = sequence["target_tokens"]
      positions = np.arange(len(tokens))
      prompt_length = int((sequence["loss_weights"] == 0).sum())
      np.testing.assert_array_equal(sequence["input_tokens"], [1, *tokens[:-1]])
      np.testing.assert_array_equal(sequence["positions"], positions)
      np.testing.assert_array_equal(sequence["loss_weights"], positions >= prompt_length)
      np.testing.assert_array_equal(sequence["causal_attention"], positions <= prompt_length)
      assert tokens[-1] == 1
      pairs.append((BYTES.decode(tokens[:prompt_length]), BYTES.decode(tokens[prompt_length:])))
  assert sorted(pairs) == EXPECTED


def test_loss_on_all_tokens_changes_only_the_loss_weights(tmp_path, tsv):
  arguments = {"architecture": "decoder", "inputs_length": 128, "targets_length": None}
  features = read_epoch(build_task(tmp_path, tsv, **arguments))
  features_with_full_loss = read_epoch(build_task(tmp_path, tsv, loss_on="all", **arguments))
  loss_weights = features_with_full_loss.pop("decoder_loss_weights")
  np.testing.assert_array_equal(loss_weights, features_with_full_loss["decoder_segment_ids"] > 0)
  for name, x in features_with_full_loss.items():
    np.testing.assert_array_equal(x, features[name], err_msg=name)


def test_packed_and_unpacked_losses_are_equal(tmp_path, tsv):
  dims = Dims(embed=16, heads=4, kv_heads=4, head_dim=4, mlp=32, layers=2)
  model = tiny.model(Variant(dims, t5.V1_1, BYTES.size), layers="loop")
  evaluate = jax.jit(Objective())

  def sum_losses(packed):
    total = collections.Counter()
    for batch in loader.eval_batches(build_task(tmp_path, tsv, packed=packed), batch_size=20):
      del batch["example_index"]
      _, sums = jax.device_get(evaluate(model, jax.tree.map(jnp.asarray, batch)))
      total.update({name: float(sums[name]) for name in ("loss", "weights", "correct")})
    return total

  packed = sum_losses(True)
  unpacked = sum_losses(False)
  assert packed["weights"] == unpacked["weights"]
  assert packed["weights"] == sum(len(target) + 1 for _, target in PAIRS)
  assert packed["correct"] == unpacked["correct"]
  assert packed["loss"] == pytest.approx(unpacked["loss"], rel=1e-5)


def test_too_long_examples_are_refused_skipped_or_truncated(tmp_path, tsv, capsys):
  with refuses("of 60 examples are too long (inputs_length: ", " over 24, the longest "):
    build_task(tmp_path, tsv, inputs_length=24)
  short = [pair for pair in EXPECTED if len(pair[0]) < 24]
  text_task = build_task(tmp_path, tsv, inputs_length=24, too_long="skip")
  assert f"{60 - len(short)} of 60 examples skipped, too long" in capsys.readouterr().out
  assert decode_pairs(read_epoch(text_task)) == short
  text_task = build_task(tmp_path, tsv, inputs_length=24, too_long="truncate")
  assert f"{60 - len(short)} of 60 examples truncated" in capsys.readouterr().out
  assert decode_pairs(read_epoch(text_task)) == sorted((a[:23], b) for a, b in EXPECTED)
  with refuses("all 60 examples are too long"):
    build_task(tmp_path, tsv, inputs_length=2, too_long="skip")


def test_examples_without_inputs_or_targets_are_counted(tmp_path, tsv, capsys):
  tsv.write_text("source\ttarget\na\tb\n\tx\ny\t \nz\tw\n")
  assert read_epoch(build_task(tmp_path, tsv))["encoder_input_tokens"].shape[0] == 1
  skipped = "1 records skipped (empty inputs), 1 records skipped (empty targets)"
  assert f"prepared 2 examples, {skipped}" in capsys.readouterr().out


FIELDS = "a\tb\n1\t2\n"


@pytest.mark.parametrize(
  "text, changes, words",
  [
    (
      "source\ttargte\na\tb\n",
      {},
      ("pairs.tsv:1: ", "'target' among source, targte", "did you mean 'targte'"),
    ),
    ("source\ttarget\na\n", {}, ("pairs.tsv:2: ", "found 1 tab-separated columns")),
    ("source\ttarget\n", {}, ("split 'train': ", "found 0 examples")),
    ("source\ttarget\n\t\n", {}, ("found 0 examples, 1 records skipped (empty inputs)",)),
    (FIELDS, {"inputs": "{"}, ("config.task.inputs: ", "found '{'")),
    (FIELDS, {"inputs": "nothing"}, ("config.task.inputs: ", "found 'nothing'", "a field")),
    (FIELDS, {"inputs": "{a!r}"}, ("config.task.inputs", "conversion of 'a'")),
    (FIELDS, {"source": "tvs:x"}, ("found format 'tvs'", "did you mean 'tsv'")),
    (FIELDS, {"prefix": True}, ("config.task.prefix: ", "found True")),
    (FIELDS, {"loss_on": "all"}, ("config.task.loss_on: ", "'all'", "architecture='decoder'")),
    (FIELDS, {"architecture": "decoder"}, ("config.task.targets_length: ", "found 80")),
  ],
)
def test_bad_tables_and_arguments_are_refused(tmp_path, tsv, text, changes, words):
  tsv.write_text(text)
  with refuses(*words):
    build_task(tmp_path, tsv, **changes)
  assert not list(tmp_path.glob("cache/[!.]*/"))


def test_a_changed_source_of_the_same_size_is_prepared_again(tmp_path, tsv):
  tsv.write_text("source\ttarget\na\tb\n")
  before = build_task(tmp_path, tsv)
  tsv.write_text("source\ttarget\na\tc\n")
  os.utime(tsv, ns=(0, 10**18))  # a file system's clock may be coarse
  after = build_task(tmp_path, tsv)
  assert before.fingerprint != after.fingerprint
  target = read_epoch(after)["decoder_target_tokens"][0]
  assert target[0] == after.vocabulary.encode("c")[0]


@pytest.mark.parametrize(
  "line, words",
  [
    ('{"a": NaN, "b": 1}', ("j.jsonl:1: ", "found nan in field 'a'")),
    ('{"a": 1e999, "b": 1}', ("found inf in field 'a'",)),
    ('{"a": ["x"], "b": 1}', ("found list in field 'a'",)),
    ('{"a": "x\\u0000y", "b": 1}', ("found 0 examples, 1 records skipped (NUL character)",)),
  ],
)
def test_bad_values_of_a_text_field_are_refused(tmp_path, line, words):
  (tmp_path / "j.jsonl").write_text(line + "\n")
  with refuses(*words):
    build_task(tmp_path, f"jsonl:{tmp_path}/j.jsonl", inputs="{a}", targets="{b}")


def test_templates_read_nested_fields_and_items_of_lists():
  record = {"a": {"b": ["x", 3]}, "c": [{"d": "y"}, {"d": None}, {"d": True}], "e": []}
  assert Template("{a.b.1} {{}}", "inputs")(record, "here") == "3 {}"
  assert Template("{a.b.*} {c.*.d}", "inputs")(record, "here") == "x 3 y True"
  assert Template("{e.*}", "inputs")(record, "here") is None
  assert Template("{e.0.text}", "inputs")(record, "here") is None
  with refuses("found list in field 'a.b', expected text or a number"):
    Template("{a.b}", "inputs")(record, "here")


@pytest.mark.parametrize(
  "sentinels, text",
  [
    (0, "the fox"),
    (2, "<extra_id_0> the <extra_id_1> fox"),
    (125, "<extra_id_0> the <extra_id_1> <extra_id_2> fox"),
  ],
)
def test_sentinels_precede_items_of_a_list_while_they_last(sentinels, text):
  row = {"words": ["the", None, "fox"], "deep": [{"tag": 7}], "none": [], "empty": ["", None]}
  template = Template("tag: {words.<*>}", "inputs", sentinels)
  assert template(row, "here") == f"tag: {text}"
  assert template.fields == ("words.*",)
  assert template.has_sentinels == (sentinels > 0)
  assert not Template("{words.*}", "inputs", 9).has_sentinels
  assert Template("{deep.<*>.tag}", "inputs", 1)(row, "here") == "<extra_id_0> 7"
  assert Template("{none.<*>}", "inputs", 9)(row, "here") is None
  assert Template("{empty.<*>}", "inputs", 9)(row, "here") is None


@pytest.mark.parametrize(
  "inputs, expected",
  [
    ("{tokens.*}", BYTES.encode("Ada <extra_id_9>")),
    (
      "{tokens.<*>}",
      vocabularies.encode_sentinels(BYTES, "<extra_id_0> Ada <extra_id_1> <extra_id_9>"),
    ),
  ],
)
def test_sentinels_in_records_are_encoded_as_text(tmp_path, inputs, expected):
  (tmp_path / "c.conll").write_text("Ada\tB\n<extra_id_9>\tO\n\n")
  text_task = build_task(tmp_path, f"conll:{tmp_path}/c.conll", inputs=inputs, targets="{1.<*>}")
  row = read_epoch(text_task)
  input_ids = row["encoder_input_tokens"][0].tolist()
  target_ids = row["decoder_target_tokens"][0].tolist()
  targets = vocabularies.encode_sentinels(BYTES, "<extra_id_0> B <extra_id_1> O")
  assert input_ids[: len(expected) + 1] == [*expected, BYTES.eos_id]
  assert target_ids[: len(targets)] == targets
