"""Tools that prepare data refuse wrong flags in one line."""

import pytest

from tools import prepare_data, train_vocabulary

REQUIRED = ["--source=text:a.txt", "--output=out"]


@pytest.mark.parametrize(
  ("tool", "flags", "message"),
  [
    (train_vocabulary, ["--size=x"], "argument --size: invalid int value: 'x'"),
    (train_vocabulary, ["--size=300", "--kind=nope"], "invalid choice: 'nope'"),
    (train_vocabulary, [], "the following arguments are required: --size"),
    (prepare_data, [], "the following arguments are required: --vocabulary"),
  ],
)
def test_a_wrong_flag_is_refused_in_one_line(tool, flags, message, capsys):
  assert tool.main([*REQUIRED, *flags]) == 2
  errors = capsys.readouterr().err
  assert message in errors
  assert errors.count("\n") == 1
