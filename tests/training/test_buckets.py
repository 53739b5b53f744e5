"""Cutting batches to a few lengths loses no token, and does not change losses."""

import json

import numpy as np
import pytest

import tests.recipes.nano_encoder  # noqa: F401 -- registers the variant of the runs
from fine_tuning import fine_tuning
from t5x_like import train
from t5x_like.data.features import encoder, encoder_decoder
from t5x_like.report.writer import read_metrics
from t5x_like.training import buckets
from tests.runs import fingerprints, losses

pytestmark = pytest.mark.runs

PAD = 3


def padded_rows(text_lengths: list[int], length: int) -> np.ndarray:
  """Return a row for each text, of ids 0 to 2 and then padding."""
  tokens = np.arange(length) % 3
  is_text = np.arange(length) < np.array(text_lengths)[:, None]
  return np.where(is_text, tokens, PAD).astype(np.int32)


def test_lengths_divide_a_row_evenly():
  assert buckets.lengths(80, 8) == [16, 24, 32, 40, 56, 64, 72, 80]
  assert buckets.lengths(100, 4) == [32, 56, 80, 100]
  assert buckets.lengths(100, 1) == [100]


@pytest.mark.parametrize(
  ("longest", "length"), [(1, 16), (16, 16), (17, 24), (73, 80), (80, 80), (0, 16)]
)
def test_batch_is_cut_to_the_smallest_length_that_keeps_all_tokens(longest, length):
  tokens = padded_rows([min(longest, 5), longest], 80)
  batch = {"encoder_input_tokens": tokens, "encoder_token_types": tokens % 2, "label": np.arange(2)}
  cut = buckets.cut_batch(batch, encoder(80) | {"label": buckets.Feature((), "int32")}, 8, PAD)
  assert {name: x.shape for name, x in cut.items()} == {
    "encoder_input_tokens": (2, length),
    "encoder_token_types": (2, length),
    "label": (2,),
  }
  assert (cut["encoder_input_tokens"] != PAD).sum() == (tokens != PAD).sum()


@pytest.mark.parametrize(
  ("inputs", "targets", "lengths"), [(30, 2, (32, 8)), (5, 7, (16, 8)), (5, 16, (48, 16))]
)
def test_inputs_and_targets_are_cut_to_the_same_share(inputs, targets, lengths):
  input_length, target_length = lengths
  batch = {"encoder_input_tokens": padded_rows([inputs], 64)}
  for name in encoder_decoder(64, 16):
    if name.startswith("decoder"):
      batch[name] = padded_rows([targets], 16)
  segments = {"encoder_segment_ids": (batch["encoder_input_tokens"] != PAD).astype(np.int32)}
  for segment_ids in ({}, segments):
    features = {
      name: buckets.Feature(x.shape[1:], "int32") for name, x in (batch | segment_ids).items()
    }
    cut = buckets.cut_batch(batch | segment_ids, features, 4, PAD)
    for name, x in cut.items():
      assert x.shape[1] == (target_length if name.startswith("decoder") else input_length)


@pytest.mark.more
@pytest.mark.usefixtures("compiled", "one_device")
def test_cut_batches_have_the_same_losses_and_a_run_resumes(tmp_path, capsys):
  """Batches have 4 rows of 10 to 60 bytes. A resumed run with dropout has the same bits."""
  overrides = [f"--config.{override}" for override in fine_tuning("classification", tmp_path)]
  texts = ("word " * (2 + n * n % 11) for n in range(40))
  data = "".join(f"{text.strip()}\t{('same', 'other')[n % 2]}\n" for n, text in enumerate(texts))
  (tmp_path / "data").write_text("text\tlabel\n" + data)

  def train_run(name, steps, *flags):
    common_flags = (
      "--config.checkpoint.every=1",
      "--config.checkpoint.keep_last=9",
      "--config.batch_size=4",
    )
    command = [
      "--config=tests/recipes/nano_encoder.py",
      f"--workdir={tmp_path}/{name}",
      *common_flags,
      *overrides,
      *flags,
    ]
    assert train.main([*command, f"--config.total_steps={steps}"]) == 0, capsys.readouterr().err
    return tmp_path / name

  no_dropout = "--config.model.dropout=0.0"
  cut = train_run("cut", 4, "--config.task.buckets=4", no_dropout)
  whole = train_run("whole", 4, no_dropout)
  for (cut_step, cut_loss), (whole_step, whole_loss) in zip(
    losses(cut), losses(whole), strict=True
  ):
    assert cut_step == whole_step
    assert cut_loss == pytest.approx(whole_loss, rel=1e-5)
  flops_of_steps = set()
  for row in read_metrics(cut):
    flops = row["train/model_flops_per_second"] * row["train/seconds_per_step"]
    flops_of_steps.add(round(flops))
  assert len(flops_of_steps) > 1, "all batches had the same length, so the test shows nothing"
  assert json.loads((cut / "config.json").read_text())["features"]["encoder_input_tokens"] == [64]
  with_dropout = ("--config.task.buckets=4", "--config.model.dropout=0.1")
  uninterrupted = train_run("uninterrupted", 4, *with_dropout)
  for steps in (2, 4):
    resumed = train_run("resumed", steps, *with_dropout)
  assert losses(resumed) == losses(uninterrupted)
  assert fingerprints(resumed, 4) == fingerprints(uninterrupted, 4)
