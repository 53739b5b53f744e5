"""`tools.benchmark fine_tune` refuses bad flags and trains MiniLM's sizes."""

import argparse

import pytest

from tools.benchmark import __main__ as benchmark
from tools.benchmark import fine_tune


@pytest.mark.parametrize(
  "flag", ["--shapes=32", "--shapes=0x64", "--shapes=axb", "--steps=0", "--threads=0"]
)
def test_bad_flags_are_refused_in_one_line(flag, capsys):
  assert benchmark.main(["fine_tune", flag]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert "--shapes: expected pairs such as 32x64,12x192" in line


@pytest.mark.more
def test_our_step_trains_the_sizes_of_minilm(compiled, one_device):
  run = fine_tune._prepare_t5x_like(argparse.Namespace(dropout=0.1), 2, 8)
  run()
  run()
