"""Predicts with a trained model: python -m t5x_like.predict --workdir=runs/small --input=lines.txt --output=out.jsonl

Every line of the input is a text (or, in a .jsonl file, an object with one), and has a JSON object in the output, in
the same order: `input`, what the model makes of it, and its `score`, the log-probability. What that is depends on the
architecture:

  encoder-decoder  the text that answers it; sentinels in the input are filled in too
    Returns the <extra_id_0> of the array.  ->  {"prediction": "<extra_id_0> sum", "filled": "Returns the sum of …"}
  decoder          what follows it: the prompt is not repeated, and a prefix LM sees all of it at once
    def add(a, b):                          ->  {"prediction": " return a + b"}
  encoder          the likeliest pieces for each mask, with their probabilities
    The [MASK] of the array.                ->  {"predictions": [[{"text": "sum", "probability": 0.31}, …]],
                                                 "filled": "The sum of the array."}

The likeliest token is taken at every step, unless flags say otherwise:

  four beams, the best two of them       --beams=4 --samples=2 --length_penalty=0.6
  three samples of nucleus sampling      --samples=3 --top_p=0.9 --temperature=0.8 --seed=1
  ten candidates for each mask           --top_k=10
  from standard input to standard output --input=- --output=-

A sample is a function of the seed, the number of its text and its own: neither the batch size nor the number of
devices changes it.
"""

import contextlib
import pathlib
import sys
from typing import Any

from t5x_like import command_line
from t5x_like.errors import UserError, door

LONGEST = "tokens generated at most (default: the length of training targets; decoders up to 64)"
GENERATION = (
  ("max_new_tokens", int, LONGEST),
  ("min_new_tokens", int, "tokens generated before the end may come"),
  ("beams", int, "sequences a beam search keeps (default: 1, greedy)"),
  ("length_penalty", float, "alpha of the beams' score, log-probability / ((5 + length) / 6)^alpha (default: 0.6)"),
  ("samples", int, "predictions for each text: drawn ones, or the best of the beams (default: 1)"),
  ("temperature", float, "sample from logits divided by it"),
  ("top_k", int, "sample from the N likeliest tokens; for an encoder, candidates for each mask (default: 5)"),
  ("top_p", float, "sample from the fewest likeliest tokens that have this probability together"),
  ("min_p", float, "sample from tokens at least so many times as likely as the likeliest"),
  ("seed", int, "of the samples (default: 0)"),
)


@door
def main(argv: list[str]) -> None:
  args, overrides = command_line.parse(
    argv,
    __doc__,
    ("--input", {"required": True, "metavar": "FILE", "help": "UTF-8, a text or JSON object a line; - is stdin"}),
    ("--output", {"required": True, "metavar": "FILE", "help": "the JSONL file to write; - is stdout"}),
    ("--text_field", {"metavar": "KEY", "help": "the input is JSONL with its texts here (default for .jsonl: text)"}),
    ("--step", {"type": int, "metavar": "N", "help": "the checkpoint to use (default: the newest)"}),
    ("--batch_size", {"type": int, "metavar": "N", "default": 32, "help": "rows at once (default: %(default)s)"}),
    *(
      (f"--{name}", {"type": kind, "metavar": "N" if kind is int else "X", "help": text})
      for name, kind, text in GENERATION
    ),
    config_required=False,
  )
  if args.batch_size < 1:
    raise UserError(f"--batch_size={args.batch_size}: expected at least 1")

  import jax

  from t5x_like.inference import texts
  from t5x_like.training import process

  process.prepare()
  if args.input == "-" and jax.process_count() > 1:
    raise UserError("--input=-: several processes have no standard input in common; name a file that all can read")
  lines = texts.read(args.input, args.text_field)
  with contextlib.redirect_stdout(sys.stderr if args.output == "-" else sys.stdout):
    answers = _answers(args, overrides, lines)
  if process.first():
    texts.write(args.output, answers)


def _answers(args, overrides: list[str], lines: list[str]) -> list[dict[str, Any]]:
  """An answer to each line; what can be refused is refused before parameters are read."""
  import jax

  from t5x_like import inference
  from t5x_like.data import vocabularies
  from t5x_like.inference.rows import Runner
  from t5x_like.training import assembly, process, trained

  config, identity = trained.open_config(args.workdir, args.config, overrides)
  vocabulary = vocabularies.load(str(pathlib.Path(args.workdir) / "vocabulary"))
  config.batch_size, config.accumulation_steps = jax.device_count(), 1  # fits any mesh; the runner has its own
  config = assembly.resolve(config)
  trained.check_model(identity, config, args.workdir, vocabulary)
  parts = assembly.build(config)
  flags = {name: getattr(args, name) for name, *_ in GENERATION if getattr(args, name) is not None}
  predict = inference.predictor(parts.model, vocabulary, identity["features"], flags)
  ids = predict.encode(lines, args.input)
  step, arrays = trained.restore_params(args.workdir, parts, args.step)
  process.say(f"{args.workdir}: step {step}; {len(lines)} lines")
  return predict(Runner(parts.model, parts.rules, arrays, args.batch_size), ids, lines)


if __name__ == "__main__":
  command_line.program(main)
