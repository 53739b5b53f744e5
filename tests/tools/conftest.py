"""The fixture `score` runs `tools.score` on files that a test describes."""

import pytest

from scoring import run, write


@pytest.fixture
def score(tmp_path, capsys):
  """Return a function that writes references and predictions, scores them and returns the scores.

  References and predictions are (file name, content) or a list of these.
  """

  def score_files(benchmark, references, predictions, *flags):
    files = [references] if isinstance(references, tuple) else references
    paths = [f"--references={write(tmp_path / name, content)}" for name, content in files]
    name, content = predictions
    code, scores = run(
      capsys, benchmark, *paths, f"--predictions={write(tmp_path / name, content)}", *flags
    )
    assert code == 0, scores
    assert scores.pop("benchmark") == benchmark
    return scores

  return score_files
