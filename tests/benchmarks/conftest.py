"""The encoder that suites fine-tune."""

import pytest

from tests.benchmarks.small_suites import train_encoder


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory, compiled):
  """Return the workdir of a BERT with 64 positions and the checkpoints of its two steps."""
  workdir = tmp_path_factory.mktemp("pretrained")
  train_encoder(workdir, "--config.checkpoint.every=1")
  return workdir
