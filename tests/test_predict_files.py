"""What prediction reads and writes, and numbers that it cannot use, through the command."""

import json
import re

import pytest

from t5x_like import predict
from t5x_like.inference import capacity

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled")]


@pytest.fixture
def refused(trained, capsys, tmp_path):
  """The one line on which a prediction for some text ends."""

  def call(text: str, *flags: str) -> str:
    (tmp_path / "lines.txt").write_text(text)
    assert (
      predict.main(
        [f"--workdir={trained}", f"--input={tmp_path}/lines.txt", "--output=/dev/null", *flags]
      )
      == 2
    )
    (line,) = capsys.readouterr().err.splitlines()
    return line

  return call


def test_the_input_and_devices_are_not_replaced(trained, tmp_path, capsys):
  source = tmp_path / "lines.txt"
  source.write_text("mine\n")
  (tmp_path / "link").symlink_to(source)
  for output in (source, tmp_path / "link"):
    assert predict.main([f"--workdir={trained}", f"--input={source}", f"--output={output}"]) == 2
    assert "would overwrite the input" in capsys.readouterr().err
    assert source.read_text() == "mine\n"
  config = (trained / "config.json").read_bytes()
  assert (
    predict.main([f"--workdir={trained}", f"--input={source}", f"--output={trained}/config.json"])
    == 2
  )
  assert "belongs to the workdir" in capsys.readouterr().err
  assert (trained / "config.json").read_bytes() == config
  null = tmp_path / "null"
  null.symlink_to("/dev/null")
  assert (
    predict.main(
      [f"--workdir={trained}", f"--input={source}", f"--output={null}", "--max_new_tokens=2"]
    )
    == 0
  )
  assert null.is_symlink()
  assert null.is_char_device()


def test_an_output_that_cannot_be_written_is_known_before_the_model_is_read(tmp_path, capsys):
  (tmp_path / "lines.txt").write_text("a\n")
  flags = (
    f"--workdir={tmp_path}/none",
    f"--input={tmp_path}/lines.txt",
    f"--output={tmp_path}/missing/out",
  )
  assert predict.main([*flags]) == 2
  assert f"no directory {tmp_path}/missing; make it first" in capsys.readouterr().err


def test_lone_surrogates_are_escaped_and_counted(trained, tmp_path, capsys):
  source = tmp_path / "lines.jsonl"
  output = tmp_path / "out.jsonl"
  source.write_text('{"text": "a\\ud83d"}\n{"text": "b"}\n')
  flags = (f"--workdir={trained}", f"--input={source}", f"--output={output}", "--max_new_tokens=2")
  assert predict.main([*flags]) == 0
  rows = [json.loads(line) for line in output.read_text().splitlines()]
  assert [row["input"] for row in rows] == ["a\ud83d", "b"]
  assert "\\ud83d" in output.read_text()
  assert capsys.readouterr().err.count("1 line with lone surrogates") == 1


def test_more_than_memory_can_hold(refused, monkeypatch):
  line = refused("a <extra_id_0>", "--max_new_tokens=1000000000")
  assert re.search(
    r"--max_new_tokens=1000000000: found room for [\d,]+ with 1 rows, "
    r"--batch_size=32, --beams=1",
    line,
  )
  assert "found room for 0 with 1,000,000,000 rows" in refused("a", "--samples=1000000000")
  assert "--beams=1000000000 and" in refused("a", "--beams=1000000000")
  slot = 2 * 8 * 2 * 2 * 32 * 2  # copies, rows, layers, keys and values, widths, bytes
  monkeypatch.setattr(capacity, "free_memory", lambda: 200 * slot)
  assert "found room for 67 with 1 rows" in refused("a", "--max_new_tokens=300")


@pytest.mark.parametrize(
  "flag", ["--temperature=1e-30", "--temperature=inf", "--top_k=0", "--top_p=nan", "--min_p=0"]
)
def test_numbers_that_no_sampling_can_use(flag, refused):
  assert f"{flag.partition('=')[0]}=" in refused("a", flag)


def test_length_penalties_that_leave_float32(refused):
  for penalty in ("1e30", "-1e30", "nan"):
    assert "expected -10 to 10" in refused("a", "--beams=2", f"--length_penalty={penalty}")
