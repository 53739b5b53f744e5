"""`tools.benchmark fine_tune`: what it refuses, and a step of its model."""

import argparse

import pytest

from tools.benchmark import __main__ as benchmark
from tools.benchmark import fine_tune


@pytest.mark.parametrize(
  "flag", ["--shapes=32", "--shapes=0x64", "--shapes=axb", "--steps=0", "--threads=0"]
)
def test_what_cannot_be_timed_is_one_line(flag, capsys):
  assert benchmark.main(["fine_tune", flag]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert "--shapes: expected pairs such as 32x64,12x192" in line


@pytest.mark.more
def test_a_step_of_ours_trains_the_sizes_of_minilm(compiled, one_device):
  run = fine_tune._ours(argparse.Namespace(dropout=0.1), 2, 8)
  run()
  run()
