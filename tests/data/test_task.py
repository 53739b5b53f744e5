"""A task on a prepared store imports none of the code that prepares stores."""

import pathlib
import subprocess
import sys

import corpora

REPO = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = """
import sys

class Blocked:
  def find_spec(self, name, path=None, target=None):
    if name.startswith("t5x_like.corpora"):
      raise ImportError("blocked: " + name)

sys.meta_path.insert(0, Blocked())
from t5x_like.data import loader, task
spans = task.build("span_corruption", "train", store=sys.argv[1], inputs_length=32)
print(next(loader.train_batches(spans, batch_size=4, seed=0))["encoder_input_tokens"].shape)
task.build("span_corruption", "train", store="builtin")
"""


def test_reading_a_prepared_store_does_not_import_corpora(tmp_path):
  corpora.write(tmp_path / "train", 2_000, [50])
  process = subprocess.run(
    [sys.executable, "-c", PROGRAM, str(tmp_path)],
    cwd=REPO,
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert process.stdout.splitlines()[-1:] == ["(4, 32)"], process.stderr[-1500:]
  # The built-in corpus is prepared at its first use.
  assert "blocked: t5x_like.corpora" in process.stderr
