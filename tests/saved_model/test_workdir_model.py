"""A run as a saved model: files name nothing outside the workdir, and the vocabulary is checked."""

import json

import pytest

from refusals import refuses
from t5x_like import vocabularies
from t5x_like.saved_model import find_saved_model
from t5x_like.saved_model.model import GenerationFacts


@pytest.fixture
def workdir(tmp_path):
  """A workdir with a vocabulary of bytes, whose config also has facts of published models."""
  vocabulary = vocabularies.load("bytes")
  (tmp_path / "vocabulary").mkdir()
  vocabulary.save(tmp_path / "vocabulary")
  identity = {
    "model": {},
    "task": {},
    "fingerprints": {"vocabulary": vocabulary.fingerprint},
    "features": {"decoder_input_tokens": [8]},
    "directory": "/elsewhere",
    "ends": [7],
    "forced": [7, 7],
    "generation": {"max_new_tokens": 7},
    "banned": [[7]],
  }
  (tmp_path / "config.json").write_text(json.dumps(identity))
  return tmp_path


def test_a_config_sets_no_directory_and_no_facts_of_generation(workdir):
  saved = find_saved_model(str(workdir))
  assert not saved.is_published
  assert saved.vocabulary_directory == f"{workdir}/vocabulary"
  assert saved.generation == GenerationFacts(ends=(saved.vocabulary.eos_id,))
  assert saved.feature_shapes == {"decoder_input_tokens": [8]}


def test_another_vocabulary_than_that_of_training_is_refused(workdir):
  identity = json.loads((workdir / "config.json").read_text())
  identity["fingerprints"]["vocabulary"] = "0" * 16
  (workdir / "config.json").write_text(json.dumps(identity))
  saved = find_saved_model(str(workdir))
  with refuses("vocabulary: fingerprints.vocabulary", "0" * 16):
    _ = saved.vocabulary


def test_a_directory_without_a_model_is_none(tmp_path):
  assert find_saved_model(str(tmp_path)) is None
