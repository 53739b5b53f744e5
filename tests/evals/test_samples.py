"""Samples in the report are a decoder's continuations and an encoder's fillings, in whole words."""

import json
import re

import pytest

import tests.recipes.nano_decoder
import tests.recipes.nano_encoder  # noqa: F401 -- registers the variants of the recipes
from t5x_like import train

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled", "one_device")]
SHORT_RUN = [
  "--config.total_steps=2",
  "--config.eval_every=2",
  "--config.checkpoint.every=2",
  "--config.evals.samples={}",
]


def train_and_read_samples(kind: str, workdir, *flags: str) -> tuple[list[dict], str]:
  """Train for two steps; return the samples and the text of the page."""
  recipe = f"--config=tests/recipes/nano_{kind}.py"
  assert train.main([recipe, f"--workdir={workdir}", *SHORT_RUN, *flags]) == 0
  (file,) = (workdir / "samples").glob("*.jsonl")
  rows = [json.loads(line) for line in file.read_text().splitlines()]
  return rows, (workdir / "report.html").read_text()


def test_a_decoder_goes_on_where_a_word_begins(tmp_path):
  rows, page = train_and_read_samples("decoder", tmp_path, "--config.evals.samples.tokens=16")
  assert len(rows) == 4
  assert page.count("continued after") == 4
  for row in rows:
    assert row["input"].strip()
    assert row["target"].strip()
    assert row["input"][-1].isspace() or row["target"][0].isspace()
  assert any(row["prediction"] != row["target"] for row in rows)


def test_an_encoder_fills_blanks_and_leaves_the_words_between_them(tmp_path):
  rows, page = train_and_read_samples("encoder", tmp_path)
  assert len(rows) == 4
  assert page.count("words as in the original") == 4
  blank = re.compile(r"\[MASK\]|<mask>|<extra_id_0>")
  for row in rows:
    assert blank.search(row["input"])
    assert not blank.search(row["original"] + row["filled"])
    parts_between_blanks = [part for part in blank.split(row["input"]) if len(part) > 2]
    assert parts_between_blanks
    for part in parts_between_blanks:
      assert part in row["original"]
      assert part in row["filled"]
  assert "[MASK]" not in page
  assert "extra_id" not in page.split("Samples of its text")[1].split("Config")[0]
