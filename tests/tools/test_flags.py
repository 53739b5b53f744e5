"""Wrong flags of the tools that prepare data are one line."""

import pytest

from tools import prepare_data, train_vocabulary

REQUIRED = ["--source=text:a.txt", "--output=out"]


@pytest.mark.parametrize(
  ("tool", "flags", "words"),
  [
    (train_vocabulary, ["--size=x"], "argument --size: invalid int value: 'x'"),
    (train_vocabulary, ["--size=300", "--kind=nope"], "invalid choice: 'nope'"),
    (train_vocabulary, [], "the following arguments are required: --size"),
    (prepare_data, [], "the following arguments are required: --vocabulary"),
  ],
)
def test_a_wrong_flag_is_one_line(tool, flags, words, capsys):
  assert tool.main([*REQUIRED, *flags]) == 2
  said = capsys.readouterr().err
  assert words in said
  assert said.count("\n") == 1
