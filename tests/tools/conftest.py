"""`score`: tools.score on files made for one test."""

import pytest

from scoring import run, write


@pytest.fixture
def score(tmp_path, capsys):
  """Writes references and predictions, each (name, content), scores them and returns the JSON
  without its name."""

  def of(benchmark, references, predictions, *flags):
    files = [references] if isinstance(references, tuple) else references
    paths = [f"--references={write(tmp_path / name, content)}" for name, content in files]
    name, content = predictions
    code, found = run(
      capsys, benchmark, *paths, f"--predictions={write(tmp_path / name, content)}", *flags
    )
    assert code == 0, found
    assert found.pop("benchmark") == benchmark
    return found

  return of
