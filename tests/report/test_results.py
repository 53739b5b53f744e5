"""A finished run on text imports nothing of images to show its results."""

import subprocess
import sys

PROGRAM = """
import sys, types
from t5x_like.report import run_report
task = types.SimpleNamespace(features={"decoder_input_tokens": None})
run_report.draw("nowhere", None, None, None, task, None, {})
print(*(name for name in sys.modules if name.startswith("t5x_like.") and "image" in name or name.endswith("pictures")))
"""


def test_a_run_on_text_imports_nothing_of_images():
  process = subprocess.run(
    [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True
  )
  assert process.stdout.strip() == ""
