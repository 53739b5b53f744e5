"""Fills in text: python -m t5x_like.predict --workdir=runs/small --input=lines.txt --output=predictions.jsonl

Every line of the input is a text with sentinels: `Returns the <extra_id_0> of the array.` The output has a JSON object
a line: `input`, `prediction` (what the model wrote) and `filled` (the input with its sentinels replaced).
"""

import json
import os
import pathlib
import re

import numpy as np

from t5x_like import command_line
from t5x_like.data import vocabularies
from t5x_like.errors import UserError, door


@door
def main(argv: list[str]) -> None:
  args, overrides = command_line.parse(
    argv,
    __doc__,
    ("--input", {"required": True, "metavar": "FILE", "help": "UTF-8 text, an input a line"}),
    ("--output", {"required": True, "metavar": "FILE", "help": "the JSONL file to write"}),
    ("--step", {"type": int, "help": "the checkpoint to use (default: the newest)"}),
    ("--batch_size", {"type": int, "default": 32, "help": "lines decoded together (default: %(default)s)"}),
    config_required=False,
  )
  if args.batch_size < 1:
    raise UserError(f"--batch_size={args.batch_size}: expected at least 1")
  lines = read_lines(args.input)

  from t5x_like.training import assembly, process, trained

  process.prepare()
  config, identity = trained.open_config(args.workdir, args.config, overrides)
  vocabulary = vocabularies.load(str(pathlib.Path(args.workdir) / "vocabulary"))
  config.batch_size, config.accumulation_steps = args.batch_size, 1
  config = assembly.resolve(config)
  trained.check_model(identity, config, args.workdir, vocabulary)
  (inputs_length,) = identity["features"]["encoder_input_tokens"]
  (targets_length,) = identity["features"]["decoder_target_tokens"]
  tokens = encode(vocabulary, lines, inputs_length, args.input)
  parts = assembly.build(config)
  step, arrays = trained.restore_params(args.workdir, parts, args.step)
  process.say(f"{args.workdir}: step {step}; {len(lines)} lines")
  predictions = decode(parts, arrays, tokens, args.batch_size, targets_length)
  if process.first():
    write(args.output, vocabulary, lines, predictions)


def read_lines(path: str) -> list[str]:
  """The non-empty lines of a text file.

  Raises:
    UserError: no such file, not UTF-8, or nothing in it.
  """
  try:
    text = pathlib.Path(path).read_bytes().decode("utf-8")
  except OSError as error:
    raise UserError(f"--input={path}: cannot be read: {error.strerror}") from error
  except UnicodeDecodeError as error:
    raise UserError(f"--input={path}: not UTF-8 at byte {error.start}; convert it to UTF-8") from error
  lines = [line for line in text.splitlines() if line.strip()]
  if not lines:
    raise UserError(f"--input={path}: found no text in it, expected an input a line")
  return lines


def encode(vocabulary, lines: list[str], length: int, path: str) -> np.ndarray:
  """int32 [lines, length]: ids and EOS, padded.

  Raises:
    UserError: a line is longer than the model was trained for.
  """
  tokens = np.zeros((len(lines), length), np.int32)
  for row, line in enumerate(lines):
    ids = vocabularies.encode_sentinels(vocabulary, line) + [vocabulary.eos_id]
    if len(ids) > length:
      raise UserError(
        f"--input={path}: text {row + 1} ({line[:40]!r}…) has {len(ids)} tokens, expected at most {length}, the length"
        " the model was trained with; shorten or split it"
      )
    tokens[row, : len(ids)] = ids
  return tokens


def decode(parts, arrays, tokens: np.ndarray, batch_size: int, max_length: int) -> np.ndarray:
  """Greedy predictions, int32 [lines, max_length], in batches of a fixed size."""
  import jax

  from t5x_like.evals import fetch, rows_of
  from t5x_like.nn import params
  from t5x_like.nn.generate import greedy

  @jax.jit
  def run(arrays, batch):
    with parts.rules.activate():
      return greedy(params.with_arrays(parts.model, arrays), batch, max_length=max_length)

  low, high = rows_of(parts.rules, batch_size)
  outputs = []
  for start in range(0, len(tokens), batch_size):
    batch = tokens[start : start + batch_size]
    batch = np.pad(batch, ((0, batch_size - len(batch)), (0, 0)))
    rows = jax.make_array_from_process_local_data(parts.rules.batch(), batch[low:high], batch.shape)
    outputs.append(fetch(run(arrays, {"encoder_input_tokens": rows})))
  return np.concatenate(outputs)[: len(tokens)]


def write(path: str, vocabulary, lines: list[str], predictions: np.ndarray) -> None:
  """Writes the JSONL file in one piece."""
  temporary = pathlib.Path(f"{path}.tmp")
  try:
    with open(temporary, "w", encoding="utf-8") as file:
      for line, ids in zip(lines, predictions.tolist()):
        prediction = vocabulary.decode(ids)
        row = {"input": line, "prediction": prediction, "filled": fill(line, prediction)}
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
    os.replace(temporary, path)
  except OSError as error:
    raise UserError(f"--output={path}: cannot be written: {error.strerror}") from error


def fill(text: str, prediction: str) -> str:
  """The text with each sentinel replaced by what the prediction says follows it; sentinels it lacks stay."""
  parts = re.split(r"(<extra_id_\d+>)", prediction)
  spans = dict(zip(parts[1::2], (span.strip() for span in parts[2::2])))
  return re.sub(r"<extra_id_\d+>", lambda found: spans.get(found[0], found[0]), text)


if __name__ == "__main__":
  command_line.program(main)
