"""Talks with a model: python -m t5x_like.chat --workdir=runs/gpt

The workdir is a run's or a Hugging Face directory. A decoder trained on conversations answers, another decoder
continues your text, an encoder-decoder answers or fills <extra_id_0>, and an encoder fills its masks. Answers appear
token by token. In the terminal, ^C stops an answer, and

  /reset           forgets the conversation
  /temperature X   draws from logits divided by X; 0 takes the likeliest token
  /system TEXT     begins again with an instruction, where the template has one
  /quit            ends

--web serves a page on this machine instead, at http://localhost:8000 or --web=PORT.
"""

import argparse
import sys

from t5x_like import command_line
from t5x_like.errors import UserError, door

PORT = 8000
_MOST_TOKENS = 2**20


def _port(text: str) -> int:
  if not text.isdecimal() or not 0 <= int(text) < 2**16:
    raise argparse.ArgumentTypeError(f"found {text!r}, expected a port from 1 to 65535, or 0 for a free one")
  return int(text)


def _tokens(text: str) -> int:
  if not text.isdecimal() or not 0 < int(text) <= _MOST_TOKENS:
    raise argparse.ArgumentTypeError(f"found {text!r}, expected a number of tokens from 1 to {_MOST_TOKENS}")
  return int(text)


@door
def main(argv: list[str]) -> None:
  given = {"metavar": "X", "type": float}
  args, overrides = command_line.parse(
    argv,
    __doc__,
    ("--step", {"type": command_line.step, "metavar": "N", "help": "the checkpoint to use (default: the newest)"}),
    ("--temperature", {**given, "default": 0.7, "help": "draw from logits divided by this (default: %(default)s)"}),
    ("--top_k", {"type": int, "metavar": "N", "help": "draw from the N likeliest tokens"}),
    ("--top_p", {**given, "help": "draw from the fewest likeliest tokens with this total probability"}),
    ("--min_p", {**given, "help": "draw from tokens at least this fraction as likely as the likeliest"}),
    ("--max_new_tokens", {"type": _tokens, "metavar": "N", "help": "the most tokens of an answer"}),
    ("--context", {"type": _tokens, "metavar": "N", "help": "the most tokens of a conversation (default: 512)"}),
    ("--seed", {"type": int, "metavar": "N", "default": 0, "help": "seed of the draws (default: 0)"}),
    ("--template", {"metavar": "NAME", "help": "the chat template (default: the training's)"}),
    ("--system", {"metavar": "TEXT", "help": "an instruction before the conversation"}),
    ("--web", {"type": _port, "nargs": "?", "const": PORT, "metavar": "PORT", "help": "serve a page on localhost"}),
    config_required=False,
  )
  if overrides or args.config:
    raise UserError("--config: a saved model is used as it is; leave it out")
  if not 0 <= args.temperature <= 1e3:
    raise UserError(f"--temperature={args.temperature}: expected 0 to 1000")

  from t5x_like.inference import terminal, web

  talk = _opened(args)
  if args.web is not None:
    web.serve(talk, args.web, args.workdir, args.temperature, args.system)
  else:
    terminal.run(talk, args.temperature, args.system, sys.stdin, sys.stdout)


def _opened(args):
  """Return the `Talk` of a saved model."""
  import jax

  from t5x_like.inference import predictors, strategies
  from t5x_like.inference.fill_mask import MaskFilling
  from t5x_like.inference.streaming import Stream
  from t5x_like.inference.talk import Talk
  from t5x_like.runtime import compile_cache, process
  from t5x_like.training import trained

  process.prepare()
  if jax.process_count() > 1:
    raise UserError("chat runs in one process; start it on one host")
  compile_cache.use(args.workdir)
  opened = trained.open_model(args.workdir, 1, args.step)
  if "image" in opened.features:
    raise UserError(f"--workdir={args.workdir}: the model is one of images; use python -m t5x_like.predict")
  flags = {} if args.max_new_tokens is None else {"max_new_tokens": args.max_new_tokens}
  template = args.template or opened.template
  predict = predictors.predictor(opened.model, opened.vocabulary, opened.features, flags, template)
  if isinstance(predict, MaskFilling):
    return Talk(opened.run, predict, None)
  filters = {name: getattr(args, name) for name in ("top_k", "top_p", "min_p") if getattr(args, name) is not None}
  predict.ends = tuple(sorted({*predict.ends, *opened.ends}))
  context = predict.longest_prompt(args.context)
  return Talk(opened.run, predict, Stream(opened.run, predict, strategies.restrictions(filters), context, args.seed))


if __name__ == "__main__":
  command_line.program(main)
