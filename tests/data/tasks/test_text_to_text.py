"""Text-to-text tasks make packed features of every row once, and refuse bad rows in one line."""

import gzip
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tokenizers

import published
import tiny
from t5x_like import vocabularies
from t5x_like.architectures.design import Variant
from t5x_like.corpora.sources import check_split, open_source
from t5x_like.data import loader, task
from t5x_like.data.supervised.templates import Template
from t5x_like.errors import DamageError, UserError
from t5x_like.models import t5
from t5x_like.nn.dims import Dims
from t5x_like.objectives.encoder_decoder import Objective

WORDS = "ten green bottles stood upon a wall and one of them fell".split()
PAIRS = [(" ".join(WORDS[: 1 + i % 7]) + f" {i}", " ".join(WORDS[-1 - i % 5 :])) for i in range(60)]
BYTES = vocabularies.load("bytes")


@pytest.fixture
def tsv(tmp_path):
  path = tmp_path / "pairs.tsv"
  path.write_text("source\ttarget\n" + "".join(f"{a}\t{b}\n" for a, b in PAIRS))
  return path


def build(tmp_path, path, **changes):
  defaults = dict(
    source=f"tsv:{path}",
    inputs="say: {source}",
    targets="{target}",
    inputs_length=96,
    targets_length=80,
    cache=str(tmp_path / "cache"),
  )
  return task.build("text_to_text", "train", **defaults | changes)


def test_targets_are_encoded_by_the_model_of_targets(tmp_path, tsv):
  directory = published.marian(tmp_path / "marian")
  built = build(tmp_path, tsv, vocabulary=str(directory), targets="{target} FOX", packed=False)
  vocabulary = vocabularies.load(str(directory))
  row = epoch(built)
  inputs = {tuple(x[x != vocabulary.pad_id]) for x in row["encoder_input_tokens"]}
  targets = {
    tuple(x[: int(w.sum())])
    for x, w in zip(row["decoder_target_tokens"], row["decoder_loss_weights"])
  }
  assert inputs == {(*vocabulary.encode(f"say: {source}"), 0) for source, _ in PAIRS}
  assert targets == {(*vocabulary.for_targets().encode(f"{target} FOX"), 0) for _, target in PAIRS}
  assert targets != {(*vocabulary.encode(f"{target} FOX"), 0) for _, target in PAIRS}


def epoch(built, batch_size=4, seed=1, start=0):
  """Return the rows of one epoch of training."""
  batches = loader.train_batches(built, batch_size=batch_size, seed=seed, start_step=start)
  rows_needed = built.num_examples
  batches_of_epoch = [next(batches) for _ in range(-(-rows_needed // batch_size))]
  return {
    name: np.concatenate([batch[name] for batch in batches_of_epoch])[:rows_needed]
    for name in batches_of_epoch[0]
  }


def decode_pairs(features):
  """Return (inputs, targets) as text of every segment of packed encoder-decoder rows."""
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
  return pairs


EXPECTED = sorted((f"say: {a}", b) for a, b in PAIRS)


def test_rows_are_packed_as_in_seqios_documentation(tmp_path):
  tokenizer = tokenizers.Tokenizer(
    tokenizers.models.WordLevel(
      {"[PAD]": 0, "</s>": 1, "[UNK]": 2} | {f"w{i}": i for i in range(3, 10)}, unk_token="[UNK]"
    )
  )
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  tokenizer.save(str(tmp_path / "tokenizer.json"))
  (tmp_path / "rows.jsonl").write_text(
    '{"a": "w7 w8 w5", "b": "w3 w9"}\n{"a": "w8 w4 w9 w3", "b": "w4"}\n'
  )
  built = build(
    tmp_path,
    None,
    source=f"jsonl:{tmp_path}/rows.jsonl",
    inputs="{a}",
    targets="{b}",
    vocabulary=str(tmp_path / "tokenizer.json"),
    inputs_length=10,
    targets_length=7,
  )
  row = next(loader.train_batches(built, batch_size=1, seed=0))
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


@pytest.mark.parametrize("packed", [True, False])
def test_an_epoch_has_every_pair_once(tmp_path, tsv, packed, capsys):
  built = build(tmp_path, tsv, packed=packed)
  assert "60 examples" in capsys.readouterr().out
  features = epoch(built)
  assert features.keys() == built.features.keys()
  for name, feature in built.features.items():
    assert features[name].shape[1:] == feature.shape
    assert features[name].dtype == feature.dtype
  if packed:
    assert built.num_examples < 30
    assert sorted(decode_pairs(features)) == EXPECTED
  else:
    assert "encoder_segment_ids" not in features
    inputs = [BYTES.decode(row) for row in features["encoder_input_tokens"]]
    targets = [BYTES.decode(row) for row in features["decoder_target_tokens"]]
    assert sorted(zip(inputs, targets)) == EXPECTED
  other_seed = epoch(built, seed=2)
  assert not np.array_equal(other_seed["encoder_input_tokens"], features["encoder_input_tokens"])


def test_evaluation_has_every_pair_once(tmp_path, tsv):
  batches = list(loader.eval_batches(build(tmp_path, tsv), batch_size=7))
  assert sorted(pair for batch in batches for pair in decode_pairs(batch)) == EXPECTED


def test_a_source_is_tokenised_once_for_all_lengths(tmp_path, tsv, capsys):
  first = build(tmp_path, tsv)
  assert "prepared 60" in capsys.readouterr().out
  assert build(tmp_path, tsv, inputs_length=128).fingerprint != first.fingerprint
  assert "prepared" not in capsys.readouterr().out.replace("/prepared", "")
  assert build(tmp_path, tsv).fingerprint == first.fingerprint
  assert build(tmp_path, tsv, targets="{source}").fingerprint != first.fingerprint
  assert "prepared 60" in capsys.readouterr().out


def test_a_decoder_reads_prompt_and_target_and_learns_the_target(tmp_path, tsv):
  built = build(
    tmp_path, tsv, architecture="decoder", prefix=True, inputs_length=128, targets_length=None
  )
  features = epoch(built)
  actual = []
  for row in range(built.num_examples):
    row_features = {name: x[row] for name, x in features.items()}
    for segment in range(1, row_features["decoder_segment_ids"].max() + 1):
      in_segment = row_features["decoder_segment_ids"] == segment
      tokens = row_features["decoder_target_tokens"][in_segment]
      inputs = row_features["decoder_input_tokens"][in_segment]
      loss_weights = row_features["decoder_loss_weights"][in_segment]
      causal_attention = row_features["decoder_causal_attention"][in_segment]
      positions = row_features["decoder_positions"][in_segment]
      assert inputs[0] == 1
      np.testing.assert_array_equal(inputs[1:], tokens[:-1])
      np.testing.assert_array_equal(positions, np.arange(len(tokens)))
      prompt = int((loss_weights == 0).sum())
      assert (loss_weights[prompt:] == 1).all()
      np.testing.assert_array_equal(causal_attention, np.arange(len(tokens)) <= prompt)
      assert tokens[-1] == 1
      actual.append((BYTES.decode(tokens[:prompt]), BYTES.decode(tokens[prompt:])))
    assert not row_features["decoder_loss_weights"][row_features["decoder_segment_ids"] == 0].any()
  assert sorted(actual) == EXPECTED


def test_a_loss_on_all_tokens_changes_only_the_loss_weights(tmp_path, tsv):
  arguments = {"architecture": "decoder", "inputs_length": 128, "targets_length": None}
  features = epoch(build(tmp_path, tsv, **arguments))
  features_of_all = epoch(build(tmp_path, tsv, loss_on="all", **arguments))
  loss_weights = features_of_all.pop("decoder_loss_weights")
  np.testing.assert_array_equal(loss_weights, features_of_all["decoder_segment_ids"] > 0)
  for name, x in features_of_all.items():
    np.testing.assert_array_equal(x, features[name], err_msg=name)


def test_packed_and_unpacked_losses_are_equal(tmp_path, tsv):
  size = Variant(
    Dims(embed=16, heads=4, kv_heads=4, head_dim=4, mlp=32, layers=2), t5.V1_1, BYTES.size
  )
  model = tiny.model(size, layers="loop")
  evaluate = jax.jit(Objective())
  losses = []
  for packed in (True, False):
    total = {"loss": 0.0, "weights": 0.0, "correct": 0.0}
    for batch in loader.eval_batches(build(tmp_path, tsv, packed=packed), batch_size=20):
      batch = {name: jnp.asarray(x) for name, x in batch.items() if name != "example_index"}
      _, sums = jax.device_get(evaluate(model, batch))
      total = {name: total[name] + float(sums[name]) for name in total}
    losses.append(total)
  packed_sums, unpacked_sums = losses
  assert packed_sums["weights"] == unpacked_sums["weights"]
  assert packed_sums["weights"] == sum(len(target) + 1 for _, target in PAIRS)
  assert packed_sums["correct"] == unpacked_sums["correct"]
  assert packed_sums["loss"] == pytest.approx(unpacked_sums["loss"], rel=1e-5)


def test_too_long_examples_are_refused_skipped_or_cut(tmp_path, tsv, capsys):
  words = r"of 60 examples are too long \(inputs_length: \d+ over 24, the longest \d+"
  with pytest.raises(UserError, match=words):
    build(tmp_path, tsv, inputs_length=24)
  short = [pair for pair in EXPECTED if len(pair[0]) < 24]
  built = build(tmp_path, tsv, inputs_length=24, too_long="skip")
  assert f"{60 - len(short)} of 60 examples skipped, too long" in capsys.readouterr().out
  assert sorted(decode_pairs(epoch(built))) == short
  built = build(tmp_path, tsv, inputs_length=24, too_long="truncate")
  assert f"{60 - len(short)} of 60 examples truncated" in capsys.readouterr().out
  assert sorted(decode_pairs(epoch(built))) == sorted((a[:23], b) for a, b in EXPECTED)
  with pytest.raises(UserError, match="all 60 examples are too long"):
    build(tmp_path, tsv, inputs_length=2, too_long="skip")


def test_empty_fields_are_counted(tmp_path, tsv, capsys):
  tsv.write_text("source\ttarget\na\tb\n\tx\ny\t \nz\tw\n")
  assert epoch(build(tmp_path, tsv), batch_size=1)["encoder_input_tokens"].shape[0] == 1
  skipped = "1 records skipped (empty inputs), 1 records skipped (empty targets)"
  assert f"prepared 2 examples, {skipped}" in capsys.readouterr().out


@pytest.mark.parametrize(
  "text, changes, message",
  [
    (
      "source\ttargte\na\tb\n",
      {},
      r"pairs.tsv:1: found no field 'target' among source, "
      r"targte.*did you mean 'targte'",
    ),
    ("source\ttarget\na\n", {}, r"pairs.tsv:2: found 1 tab-separated columns, expected 2"),
    ("source\ttarget\n", {}, r"split 'train': found 0 examples, expected at least one"),
    ("source\ttarget\n\t\n", {}, r"found 0 examples, 1 records skipped \(empty inputs\)"),
    ("a\tb\n1\t2\n", {"inputs": "{"}, r"config.task.inputs: found '\{'"),
    (
      "a\tb\n1\t2\n",
      {"inputs": "nothing"},
      r"config.task.inputs: found 'nothing', expected the "
      r"name of a field",
    ),
    ("a\tb\n1\t2\n", {"inputs": "{a!r}"}, r"config.task.inputs.*conversion of 'a'"),
    ("a\tb\n1\t2\n", {"source": "tvs:x"}, r"found format 'tvs'.*did you mean 'tsv'"),
    ("a\tb\n1\t2\n", {"prefix": True}, r"config.task.prefix: found True"),
    (
      "a\tb\n1\t2\n",
      {"loss_on": "all"},
      r"config.task.loss_on: found 'all', expected "
      r"architecture='decoder' and",
    ),
    (
      "a\tb\n1\t2\n",
      {"architecture": "decoder"},
      r"config.task.targets_length: found 80, "
      r"expected None",
    ),
  ],
)
def test_bad_input_is_one_line(tmp_path, tsv, text, changes, message):
  tsv.write_text(text)
  with pytest.raises(UserError, match=message) as error:
    build(tmp_path, tsv, **changes)
  assert "\n" not in str(error.value)
  assert not list((tmp_path / "cache").glob("[!.]*/")) if (tmp_path / "cache").exists() else True


def test_a_damaged_file_of_the_cache_is_named(tmp_path, tsv):
  build(tmp_path, tsv)
  (shard,) = (tmp_path / "cache").glob("*/targets/000000000000")
  data = bytearray(shard.read_bytes())
  data[3] ^= 1
  shard.write_bytes(data)
  words = "targets/000000000000: found SHA-256.*delete .* made again"
  with pytest.raises(DamageError, match=words):
    build(tmp_path, tsv)


def test_a_changed_source_of_the_same_size_is_prepared_again(tmp_path, tsv):
  tsv.write_text("source\ttarget\na\tb\n")
  before = build(tmp_path, tsv)
  tsv.write_text("source\ttarget\na\tc\n")
  os.utime(tsv, ns=(0, 10**18))  # a file system's clock may be coarse
  after = build(tmp_path, tsv)
  assert before.fingerprint != after.fingerprint
  target = epoch(after, batch_size=1)["decoder_target_tokens"][0]
  assert target[0] == after.vocabulary.encode("c")[0]


def test_a_full_disk_is_one_line(tmp_path, tsv, monkeypatch):
  tsv.write_text("source\ttarget\na\tb\n")

  def raise_no_space(*_, **__):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(np, "save", raise_no_space)
  monkeypatch.setattr(os, "rename", raise_no_space)
  with pytest.raises(UserError, match="No space left on device.*free some space"):
    build(tmp_path, tsv)
  assert not list((tmp_path / "cache").glob("[!.]*/"))


@pytest.mark.parametrize(
  "line, message",
  [
    ('{"a": NaN, "b": 1}', "j.jsonl:1: found nan in field 'a', expected text or a finite number"),
    ('{"a": 1e999, "b": 1}', "found inf in field 'a'"),
    ('{"a": ["x"], "b": 1}', "found list in field 'a'"),
    ('{"a": "x\\u0000y", "b": 1}', r"found 0 examples, 1 records skipped \(NUL character\)"),
  ],
)
def test_a_field_that_is_no_text_is_refused(tmp_path, line, message):
  (tmp_path / "j.jsonl").write_text(line + "\n")
  with pytest.raises(UserError, match=message):
    task.build(
      "text_to_text",
      "train",
      source=f"jsonl:{tmp_path}/j.jsonl",
      inputs="{a}",
      targets="{b}",
      cache=str(tmp_path / "cache"),
    )


def test_rows_that_cannot_be_told_apart_are_refused(tmp_path):
  def refused(source, split="train", field="en"):
    with pytest.raises(UserError) as error:
      opened = open_source(source, fields=(field,))
      check_split(opened, split)
      list(opened.records(split))
    assert "\n" not in str(error.value)
    return str(error.value)

  (tmp_path / "a.tsv").write_text("x\ty\ty\n1\t2\t3\n")
  assert "a.tsv:1: found 2 columns 'y', expected one" in refused(f"tsv:{tmp_path}/a.tsv", field="y")
  table = pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 2, names=["y", "y"])
  pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
  assert "found 2 columns 'y', expected one" in refused(f"parquet:{tmp_path}/a.parquet", field="y")
  bad = pyarrow.Array.from_buffers(
    pyarrow.string(),
    1,
    [None, pyarrow.py_buffer(np.array([0, 1], np.int32)), pyarrow.py_buffer(b"\xff")],
  )
  pyarrow.parquet.write_table(pyarrow.table({"en": bad}), tmp_path / "a.parquet")
  assert "found damaged Parquet data" in refused(f"parquet:{tmp_path}/a.parquet")
  (tmp_path / "train.en").write_text("one")
  assert "found no split 'validation', expected one of train" in refused(
    f"parallel:{tmp_path}/train.{{field}}", "validation"
  )
  (tmp_path / "s.json").write_text('{"data": [{"paragraphs": [{"context": "a", "qas": ["x"]}]}]}')
  assert "found no SQuAD data" in refused(f"squad:{tmp_path}/s.json")


def test_records_of_formats(tmp_path):
  for name, lines in (("en", "one\ntwo\n"), ("de", "eins\nzwei\n"), ("fr", "un\n")):
    with gzip.open(tmp_path / f"train.{name}.gz", "wt") as file:
      file.write(lines)
  pattern = f"parallel:{tmp_path}/{{split}}.{{field}}.gz"
  read = [row for _, row in open_source(pattern, fields=("en", "de")).records("train")]
  assert read == [{"en": "one", "de": "eins"}, {"en": "two", "de": "zwei"}]
  with pytest.raises(
    UserError,
    match=r"train.fr.gz: found 1 lines, expected as many as in the "
    r"other files",
  ):
    list(open_source(pattern, fields=("en", "fr")).records("train"))

  answers = [{"text": "Ada", "answer_start": 0}]
  questions = [
    {"id": "q1", "question": "Who?", "answers": answers},
    {"id": "q2", "question": "Why?", "answers": [], "is_impossible": True},
  ]
  squad = {"data": [{"title": "T", "paragraphs": [{"context": "Ada wrote.", "qas": questions}]}]}
  (tmp_path / "s.json").write_text(json.dumps(squad))
  read = [row for _, row in open_source(f"squad:{tmp_path}/s.json").records("train")]
  assert [(row["id"], row["answers"]) for row in read] == [("q1", answers), ("q2", [])]
  template = Template("{question} {answers.0.text} {{}}", "inputs")
  assert template(read[0], "here") == "Who? Ada {}"
  assert template(read[1], "here") is None

  (tmp_path / "c.conll").write_text("Ada\tB-PER\nwrote\tO\n\nIt\tO\n")
  read = [row for _, row in open_source(f"conll:{tmp_path}/c.conll").records("train")]
  assert read[0] == {"tokens": ["Ada", "wrote"], "0": ["Ada", "wrote"], "1": ["B-PER", "O"]}
  assert len(read) == 2

  (tmp_path / "j.jsonl").write_text(
    '{"a": {"b": ["x", 3]}, "c": [{"d": "y"}, {"d": null}, {"d": true}], "e": []}\n'
  )
  ((where, row),) = open_source(f"jsonl:{tmp_path}/j.jsonl").records("train")
  assert Template("{a.b.1}", "inputs")(row, where) == "3"
  assert Template("{a.b.*} {c.*.d}", "inputs")(row, where) == "x 3 y True"
  assert Template("{e.*}", "inputs")(row, where) is None
  with pytest.raises(UserError, match="found list in field 'a.b', expected text or a number"):
    Template("{a.b}", "inputs")(row, where)


@pytest.mark.parametrize("sentinels", [0, 2, 125])
def test_items_of_a_list_stand_behind_sentinels_as_far_as_there_are_any(sentinels):
  row = {"words": ["the", None, "fox"], "deep": [{"tag": 7}], "none": [], "empty": ["", None]}
  texts = {
    0: "the fox",
    2: "<extra_id_0> the <extra_id_1> fox",
    125: "<extra_id_0> the <extra_id_1> <extra_id_2> fox",
  }
  template = Template("tag: {words.<*>}", "inputs", sentinels)
  assert template(row, "here") == f"tag: {texts[sentinels]}"
  assert template.fields == ("words.*",)
  assert template.has_sentinels == (sentinels > 0)
  assert not Template("{words.*}", "inputs", 9).has_sentinels
  assert Template("{deep.<*>.tag}", "inputs", 1)(row, "here") == "<extra_id_0> 7"
  assert Template("{none.<*>}", "inputs", 9)(row, "here") is None
  assert Template("{empty.<*>}", "inputs", 9)(row, "here") is None


def test_sentinels_of_a_template_are_sentinels_and_those_in_other_texts_are_text(tmp_path):
  (tmp_path / "c.conll").write_text("Ada\tB\n<extra_id_9>\tO\n\n")
  for inputs, expected in (
    ("{tokens.*}", BYTES.encode("Ada <extra_id_9>")),
    (
      "{tokens.<*>}",
      vocabularies.encode_sentinels(BYTES, "<extra_id_0> Ada <extra_id_1> <extra_id_9>"),
    ),
  ):
    built = build(
      tmp_path,
      f"{tmp_path}/c.conll",
      source=f"conll:{tmp_path}/c.conll",
      inputs=inputs,
      targets="{1.<*>}",
    )
    row = built.batch(np.array([0]), np.array([0]), 0)
    assert row["encoder_input_tokens"][0].numpy().tolist()[: len(expected) + 1] == [
      *expected,
      BYTES.eos_id,
    ]
    target = vocabularies.encode_sentinels(BYTES, "<extra_id_0> B <extra_id_1> O")
    assert row["decoder_target_tokens"][0].numpy().tolist()[: len(target)] == target
