"""`tools.inspect_data` shows the loader's batches, and no text can act on its page."""

import io
import re

import numpy as np
import pytest
from rich.console import Console

from t5x_like import recipes
from t5x_like.data import loader, task
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary
from tools import inspect_data

pytestmark = pytest.mark.runs


def test_the_page_shows_the_ids_of_the_batch(tmp_path, capsys):
  page = tmp_path / "page.html"
  flags = ["--config=configs/t5/base.py:debug", "--step=3", "--examples=2"]
  assert inspect_data.main([*flags, f"--html={page}"]) == 0
  assert "2 examples" in capsys.readouterr().out
  config = recipes.load("configs/t5/base.py:debug")
  built = task.build(split="train", **config.task.to_dict())
  batch = next(
    iter(loader.train_batches(built, batch_size=config.batch_size, seed=config.seed, start_step=3))
  )
  shown_ids = [int(i) for i in re.findall(r'title="id (\d+)', page.read_text())]
  expected = []
  for row in range(2):
    for name in sorted(name for name in batch if name.endswith("_tokens")):
      ids = batch[name][row]
      expected += ids[: np.flatnonzero(ids)[-1] + 1].tolist()
  assert shown_ids == expected
  assert inspect_data.main([*flags, "--ids", "--config.task.inputs_length=32"]) == 0
  printed = capsys.readouterr().out
  assert "encoder_input_tokens" in printed
  assert "Example 1" in printed
  assert "<extra_id_0>:383" in printed
  # Output that is not a terminal has no colour.
  assert "encoder_input_tokens int32[32]" in printed
  assert "\x1b" not in printed


def test_texts_are_escaped_and_invisible_characters_are_shown():
  vocabulary = ByteVocabulary()
  ids = np.array([*vocabulary.encode("<script>[red]\x1b\0"), 383, 1, 0, 0], np.int32)
  ones = np.ones_like(ids)
  features = inspect_data.describe(
    {
      "encoder_input_tokens": ids,
      "encoder_target_tokens": np.where(np.arange(ids.size) == 2, ids, 0),
      "encoder_loss_weights": (np.arange(ids.size) == 2).astype(np.float32),
      "encoder_segment_ids": ones,
      "next_sentence_label": np.int32(1),
      "image": np.zeros((4, 4, 3), np.float32),
    },
    vocabulary,
  )
  by_name = {feature.name: feature for feature in features}
  assert by_name["encoder_input_tokens"].padding == 2
  target = by_name["encoder_target_tokens"].cells
  assert [(cell.piece, cell.off) for cell in target] == [
    ("\u00b7", True),
    ("\u00b7", True),
    ("c", False),
  ]
  assert by_name["next_sentence_label"].values == "1"
  assert "48 values, 0 of them" in by_name["image"].values
  page = inspect_data.to_html([features], "<b>", "&")
  assert "<script>" not in page
  assert "<b>" not in page
  out = io.StringIO()
  inspect_data.to_terminal(Console(file=out, width=200), [features], ids=False)
  assert "[|r|e|d|]|<0x1B>|<0x00>|<extra_id_0>|</s>| + 2 padding" in out.getvalue()
  assert inspect_data.visible("a\u202eb\x07\u200f") == "a\\u202eb\\x07\\u200f"


@pytest.mark.parametrize(
  "flags, message",
  [
    (["--step=-1"], "argument --step: found '-1'"),
    ([f"--step={10**20 - 1}"], "argument --step: found '99"),
    (["--step=nan"], "argument --step: found 'nan'"),
    (["--step=٣"], "argument --step: found '٣'"),  # an Arabic digit
    (["--examples=0"], "--examples=0"),
    (["--split=nothing"], "nothing"),
    (["--config.no=1"], "--config.no: "),
    (["--config.task.store=nowhere"], "nowhere/train: no token store"),
  ],
)
def test_bad_flags_are_refused_in_one_line(flags, message, capsys):
  assert inspect_data.main(["--config=configs/t5/base.py:debug", *flags]) == 2
  error = capsys.readouterr().err.strip().splitlines()[-1]
  assert error.startswith("error:")
  assert message in error
