"""The fixtures `score` and `refusal` run `tools.score` on files that a test describes."""

import pytest

from scoring import run, write


@pytest.fixture
def score(tmp_path, capsys):
  """Return a function that writes references and predictions, scores them and returns the scores.

  It checks the intervals and leaves them out.
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
    for score, interval in scores.pop("intervals").items():
      assert score in scores
      assert interval["low"] <= interval["high"]
    return scores

  return score_files


@pytest.fixture
def refusal(tmp_path, capsys):
  """Return a function that scores files and returns the refusal.

  Files are (name, content); no file is written where the content is None.
  """

  def score_files(benchmark, references, predictions, *flags):
    for name, content in (references, predictions):
      if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
      elif content is not None:
        write(tmp_path / name, content)
    paths = (
      f"--references={tmp_path / references[0]}",
      f"--predictions={tmp_path / predictions[0]}",
    )
    code, output = run(capsys, benchmark, *paths, *flags)
    assert code == 2
    return output

  return score_files
