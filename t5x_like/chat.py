"""Talk with a model.

python -m t5x_like.chat --workdir=runs/gpt

--workdir is the workdir of a run, a Hugging Face directory, a GGUF file or the name of a model on
the Hub. A decoder trained on conversations or published with a chat template answers; any other
decoder continues your text; an encoder-decoder answers or fills <extra_id_0>; an encoder fills its
masks. The first line of output names this mode and the template. Answers appear token by token. In
the terminal, ^C stops an answer, and these commands are understood:

  /reset           forgets the conversation
  /temperature X   divides the logits by X before sampling; 0 takes the most likely token
  /system TEXT     starts over with an instruction, if the template has room for one
  /quit            ends the program

--web serves a page on this machine instead, at http://localhost:8000 or --web=PORT.
"""

import argparse
import io
import sys

from t5x_like import command_line
from t5x_like.command_line import flag
from t5x_like.errors import UserError, handle_errors
from t5x_like.files.gguf_file import is_gguf
from t5x_like.inference import flags

PORT = 8000
_MAX_TOKENS = 2**20
_TEMPLATE_HELP = (
  "the chat template, or none (default: the template of the training data, or the one published "
  "with the model)"
)
_SAMPLING_FLAGS = (
  "top_k",
  "top_p",
  "min_p",
  "typical_p",
  "repetition_penalty",
  "no_repeat_ngram_size",
  "stop",
  "banned_words",
)


def _port(text: str) -> int:
  if not text.isdecimal() or not 0 <= int(text) < 2**16:
    raise argparse.ArgumentTypeError(
      f"found {text!r}, expected a port from 1 to 65535, or 0 for a free one"
    )
  return int(text)


def _token_count(text: str) -> int:
  if not text.isdecimal() or not 0 < int(text) <= _MAX_TOKENS:
    raise argparse.ArgumentTypeError(
      f"found {text!r}, expected a number of tokens from 1 to {_MAX_TOKENS}"
    )
  return int(text)


_FLAGS = (
  flag(
    "--step",
    type=command_line.step_number,
    metavar="N",
    help="the checkpoint to use (default: the newest)",
  ),
  flag(
    "--temperature",
    type=float,
    metavar="X",
    default=0.7,
    help="divide the logits by this before sampling (default: %(default)s)",
  ),
  *flags.build_flags(_SAMPLING_FLAGS),
  flag("--max_new_tokens", type=_token_count, metavar="N", help="most tokens in an answer"),
  flag(
    "--context",
    type=_token_count,
    metavar="N",
    help="most tokens in a conversation (default: 512)",
  ),
  flag("--seed", type=int, metavar="N", default=0, help="seed of the sampling (default: 0)"),
  flag("--template", metavar="NAME", help=_TEMPLATE_HELP),
  flag("--system", metavar="TEXT", help="an instruction before the conversation"),
  flag(
    "--web", type=_port, nargs="?", const=PORT, metavar="PORT", help="serve a page on localhost"
  ),
)


@handle_errors
def main(argv: list[str]) -> None:
  args, overrides = command_line.parse(argv, __doc__, *_FLAGS, config_required=False)
  if overrides or args.config:
    raise UserError("--config: chat uses a saved model without changes; leave the flag out")
  if not 0 <= args.temperature <= 1e3:
    raise UserError(f"--temperature={args.temperature}: expected 0 to 1000")

  from t5x_like.inference import terminal, web

  talk = _open_talk(args)
  if args.web is not None:
    web.serve(talk, args.web, args.workdir, args.temperature, args.system)
  else:
    if isinstance(sys.stdin, io.TextIOWrapper):
      sys.stdin.reconfigure(errors="replace")  # a message in another encoding must not end the chat
    terminal.run(talk, args.temperature, args.system, sys.stdin, sys.stdout)


def _open_talk(args: argparse.Namespace):
  """Open the saved model and return a conversation with it, a `Talk`."""
  import jax

  from t5x_like.library import model as library
  from t5x_like.runtime import compile_cache, process
  from t5x_like.saved_model import hub

  process.prepare()
  if jax.process_count() > 1:
    raise UserError("chat runs in one process; start it on one host")
  options = {}
  for name in ("max_new_tokens", *_SAMPLING_FLAGS):
    if getattr(args, name) is not None:
      options[name] = getattr(args, name)
  model = library.open_model(args.workdir, recipe=None, overrides=(), step=args.step, batch_size=1)
  # Nothing is written next to a published model that is a single file.
  has_directory = not hub.is_hub_name(args.workdir) and not is_gguf(args.workdir)
  compile_cache.enable(args.workdir if has_directory else f"hf://{args.workdir}")
  return model.talk(template=args.template, context=args.context, seed=args.seed, **options)


if __name__ == "__main__":
  command_line.run_program(main)
