"""Samples for the report: a decoder's continuations and an encoder's filled blanks, in whole
words."""

import json
import re

import pytest

import tests.recipes.nano_decoder
import tests.recipes.nano_encoder  # noqa: F401 -- the variants that the runs are of
from t5x_like import train

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled", "one_device")]
SHORT = [
  "--config.total_steps=2",
  "--config.eval_every=2",
  "--config.checkpoint.every=2",
  "--config.evals.samples={}",
]


def samples(kind: str, workdir, *flags: str) -> tuple[list[dict], str]:
  """Train for two steps; return the samples and the text of the page."""
  assert (
    train.main([f"--config=tests/recipes/nano_{kind}.py", f"--workdir={workdir}", *SHORT, *flags])
    == 0
  )
  (file,) = (workdir / "samples").glob("*.jsonl")
  return [json.loads(line) for line in file.read_text().splitlines()], (
    workdir / "report.html"
  ).read_text()


def test_a_decoder_goes_on_where_a_word_begins(tmp_path):
  found, page = samples("decoder", tmp_path, "--config.evals.samples.tokens=16")
  assert len(found) == 4 and page.count("goes on after") == 4
  for one in found:
    whole = one["input"] + one["target"]
    assert one["input"].strip() and one["target"].strip()
    assert whole[len(one["input"]) - 1].isspace() or whole[len(one["input"])].isspace()
  assert any(one["prediction"] != one["target"] for one in found)


def test_an_encoder_fills_blanks(tmp_path):
  found, page = samples("encoder", tmp_path)
  assert len(found) == 4 and page.count("words as in the original") == 4
  blank = re.compile(r"\[MASK\]|<mask>|<extra_id_0>")
  for one in found:
    assert blank.search(one["input"]) and not blank.search(one["original"] + one["filled"])
    kept = [part for part in blank.split(one["input"]) if len(part) > 2]
    assert kept and all(part in one["original"] and part in one["filled"] for part in kept)
  assert (
    "[MASK]" not in page
    and "extra_id" not in page.split("Samples of its text")[1].split("Config")[0]
  )
