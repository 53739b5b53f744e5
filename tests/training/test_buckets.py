"""Cutting batches to few lengths loses no token, and changes no loss and no resumed run."""

import json

import numpy as np
import pytest

import tests.recipes.nano_encoder  # noqa: F401 -- the variant that the runs are of
from fine_tuning import fine_tuning
from t5x_like import train
from t5x_like.data.features import encoder, encoder_decoder
from t5x_like.report.writer import read_metrics
from t5x_like.training import buckets
from tests.runs import fingerprints, losses

pytestmark = pytest.mark.runs

PAD = 3


def rows(used: list[int], length: int) -> np.ndarray:
  """Return rows of tokens of the given lengths, some with id 0, and padding."""
  tokens = np.arange(length) % 3
  return np.where(np.arange(length) < np.array(used)[:, None], tokens, PAD).astype(np.int32)


def test_lengths_are_shares_of_a_row():
  assert buckets.lengths(80, 8) == [16, 24, 32, 40, 56, 64, 72, 80]
  assert buckets.lengths(100, 4) == [32, 56, 80, 100]
  assert buckets.lengths(100, 1) == [100]


@pytest.mark.parametrize(
  ("longest", "length"), [(1, 16), (16, 16), (17, 24), (73, 80), (80, 80), (0, 16)]
)
def test_cutting_keeps_every_token_and_little_padding(longest, length):
  tokens = rows([min(longest, 5), longest], 80)
  batch = {"encoder_input_tokens": tokens, "encoder_token_types": tokens % 2, "label": np.arange(2)}
  cut = buckets.cut_batch(batch, encoder(80) | {"label": buckets.Feature((), "int32")}, 8, PAD)
  assert {name: x.shape for name, x in cut.items()} == {
    "encoder_input_tokens": (2, length),
    "encoder_token_types": (2, length),
    "label": (2,),
  }
  assert (cut["encoder_input_tokens"] != PAD).sum() == (tokens != PAD).sum()


@pytest.mark.parametrize(
  ("inputs", "targets", "shape"), [(30, 2, (32, 8)), (5, 7, (16, 8)), (5, 16, (48, 16))]
)
def test_both_sides_of_an_encoder_decoder_are_cut_to_the_same_share(inputs, targets, shape):
  batch = {
    name: rows([targets], 16) for name in encoder_decoder(64, 16) if name.startswith("decoder")
  }
  batch["encoder_input_tokens"] = rows([inputs], 64)
  segments = {"encoder_segment_ids": (batch["encoder_input_tokens"] != PAD).astype(np.int32)}
  for segment_ids in ({}, segments):
    features = {
      name: buckets.Feature(x.shape[1:], "int32") for name, x in (batch | segment_ids).items()
    }
    cut = buckets.cut_batch(batch | segment_ids, features, 4, PAD)
    assert all(x.shape[1] == shape[name.startswith("decoder")] for name, x in cut.items())


@pytest.mark.more
@pytest.mark.usefixtures("compiled", "one_device")
def test_a_run_of_cut_batches_has_the_losses_of_uncut_ones_and_resumes(tmp_path, capsys):
  """Batches of 4 rows of 10 to 60 bytes; with dropout the resumed run has the same bits."""
  overrides = [f"--config.{override}" for override in fine_tuning("classification", tmp_path)]
  texts = ("word " * (2 + n * n % 11) for n in range(40))
  data = "".join(f"{text.strip()}\t{('same', 'other')[n % 2]}\n" for n, text in enumerate(texts))
  (tmp_path / "data").write_text("text\tlabel\n" + data)

  def train_run(name, steps, *flags):
    every = (
      "--config.checkpoint.every=1",
      "--config.checkpoint.keep_last=9",
      "--config.batch_size=4",
    )
    command = [
      "--config=tests/recipes/nano_encoder.py",
      f"--workdir={tmp_path}/{name}",
      *every,
      *overrides,
      *flags,
    ]
    assert train.main([*command, f"--config.total_steps={steps}"]) == 0, capsys.readouterr().err
    return tmp_path / name

  still = ("--config.model.dropout=0.0",)
  cut = train_run("cut", 4, "--config.task.buckets=4", *still)
  uncut = train_run("whole", 4, *still)
  for cut_loss, uncut_loss in zip(losses(cut), losses(uncut), strict=True):
    assert cut_loss[0] == uncut_loss[0]
    assert cut_loss[1] == pytest.approx(uncut_loss[1], rel=1e-5)
  shapes = [
    row["train/model_flops_per_second"] * row["train/seconds_per_step"] for row in read_metrics(cut)
  ]
  assert len(set(map(round, shapes))) > 1, "all batches had one length, so that nothing is shown"
  assert json.loads((cut / "config.json").read_text())["features"]["encoder_input_tokens"] == [64]
  noisy = ("--config.task.buckets=4", "--config.model.dropout=0.1")
  unbroken = train_run("unbroken", 4, *noisy)
  for steps in (2, 4):
    parts = train_run("parts", steps, *noisy)
  assert losses(parts) == losses(unbroken)
  assert fingerprints(parts, 4) == fingerprints(unbroken, 4)
