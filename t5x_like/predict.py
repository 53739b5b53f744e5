"""Predict with a trained model.

python -m t5x_like.predict --workdir=runs/small --input=lines.txt --output=out.jsonl

Every line of the input is a text or, in a .jsonl file, an object with a text. The output has a JSON
object for each line, in the same order: `input`, the prediction, and its `score`, the
log-probability. A blank line is not given to the model; its object has an `error` instead, so that
each output has the number of its input line. The prediction depends on the architecture:

encoder-decoder: the target text; sentinels in the input are filled in too.
  Returns the <extra_id_0> of the array.
  ->  {"prediction": "<extra_id_0> sum", "filled": "Returns the sum of …"}
decoder: the continuation, without the prompt; a prefix LM attends to the prompt in both directions.
  def add(a, b):
  ->  {"prediction": " return a + b"}
decoder trained on conversations or preferences: its answer to the text as a user's message. A line
  may also hold a conversation, which the model answers by its chat template.
  {"messages": [{"role": "user", "content": "…"}]}
  ->  {"prediction": "…"}
retriever and reader: the answer to a question, its probability and the passages that it may come
  from.
encoder: the likeliest pieces for each mask, with their probabilities.
  The [MASK] of the array.
  ->  {"predictions": [[{"text": "sum", "probability": 0.31}, …]], "filled": "The sum of …"}
encoder with --embed: the text's embedding, a vector of length one: the mean over its tokens, or the
  vector of [CLS].
  The sum of the array.
  ->  {"embedding": [0.0123, -0.0456, …]}
classifier of texts: the likeliest labels with their probabilities, or the number of a regression. A
  tab or " | " separates a pair of texts; a .csv, .tsv, .parquet or .jsonl file has the columns of
  training.
  A wonderful film.
  ->  {"prediction": "positive", "probability": 0.93,
       "predictions": [{"label": "positive", "probability": 0.93}, …]}
classifier of images: the input is a folder, a pattern or a file; the likeliest classes with their
  probabilities, or the reason why a file is no image.
  photos/
  ->  {"input": "photos/1.jpg", "prediction": "cat", "probability": 0.93,
       "predictions": [{"label": "cat", "probability": 0.93}, …]}
model of images and texts: the same input, and with --texts=FILE a text a line; the texts that
  describe an image best.
  photos/
  ->  {"input": "photos/1.jpg", "prediction": "a photo of a cat", …}
detector: the same input; the objects in each image, boxes as ymin, xmin, ymax, xmax in its pixels.
  photos/
  ->  {"input": "photos/1.jpg",
       "detections": [{"label": "cat", "score": 0.93, "box": [12.5, 4.0, 210.0, 187.5]}, …]}

By default it takes the likeliest token at every step. Flags change that:

  four beams, the best two of them       --beams=4 --samples=2 --length_penalty=0.6
  three samples of nucleus sampling      --samples=3 --top_p=0.9 --temperature=0.8 --seed=1
  no repeated trigrams, to a line's end  --no_repeat_ngram_size=3 --stop=$'\\n'
  ten candidates for each mask           --top_k=10
  from standard input to standard output --input=- --output=-

The output may also be a device, a pipe or /dev/fd/N; a file is replaced once its content is
complete. The output must not be the input, nor a file of a workdir or a store. A lone surrogate,
which UTF-8 cannot encode, is written as the JSON escape \\udXXX; stderr reports the number of lines
with surrogates.

A sample depends only on the seed, the number of the text (blank lines do not count) and the number
of the sample, not on the batch size or the number of devices.
"""

import contextlib
import sys
from typing import Any

from t5x_like import command_line
from t5x_like.command_line import flag
from t5x_like.errors import UserError, handle_errors
from t5x_like.files import outputs
from t5x_like.inference import flags

_TEMPLATE = (
  "the chat template of texts and conversations (default: the training's or, of a published "
  "model's conversations, its own, published); none continues texts"
)


_FLAGS = (
  flag(
    "--input",
    required=True,
    metavar="FILE",
    help="UTF-8, one text or JSON object per line; - is stdin; or images",
  ),
  flag(
    "--output",
    required=True,
    metavar="FILE",
    help="the JSONL file, device or pipe to write; - is stdout",
  ),
  flag(
    "--text_field",
    metavar="KEY",
    help="key of the text in JSONL input (default for .jsonl: text)",
  ),
  flag("--template", metavar="NAME", help=_TEMPLATE),
  flag(
    "--texts",
    metavar="FILE",
    help="a text a line, for a model of images and texts to choose from",
  ),
  flag(
    "--embed",
    nargs="?",
    const="mean",
    choices=("mean", "cls"),
    help="an encoder's embedding of each text",
  ),
  flag(
    "--step",
    type=command_line.step_number,
    metavar="N",
    help="the checkpoint to use (default: the newest)",
  ),
  flag(
    "--batch_size",
    type=int,
    metavar="N",
    default=32,
    help="rows in a batch (default: %(default)s)",
  ),
  *flags.build_flags(name for name, *_ in flags.GENERATION_FLAGS),
)


@handle_errors
def main(argv: list[str]) -> None:
  args, overrides = command_line.parse(argv, __doc__, *_FLAGS, config_required=False)
  import jax

  from t5x_like.inference import texts
  from t5x_like.runtime import process

  process.prepare()
  if args.input == "-" and jax.process_count() > 1:
    raise UserError(
      "--input=-: several processes cannot share standard input; give a file that all can read"
    )
  output = (
    outputs.OutputFile(args.output, inputs=[args.input, args.texts]) if process.is_first() else None
  )
  with contextlib.redirect_stdout(sys.stderr if output and output.to_stdout else sys.stdout):
    answers = _answer_inputs(args, overrides)
  if output:
    output.write(texts.to_json_lines(answers))
    warning = output.describe_escapes()
    if warning:
      print(warning, file=sys.stderr)


def _answer_inputs(args, overrides: list[str]) -> list[dict[str, Any]]:
  """Return an answer for each line or image; refuse bad input before reading parameters."""
  from t5x_like.inference import images, texts
  from t5x_like.library import model as library
  from t5x_like.runtime import process

  model = library.open_model(args.workdir, args.config, overrides, args.step, args.batch_size)
  choices = _read_choices(model, args.texts)
  inputs = model.read(args.input, args.text_field)
  valid_inputs = [text for text in inputs if text is not None]
  template = _select_template(model, valid_inputs, args)
  options = {}
  for name, *_ in flags.GENERATION_FLAGS:
    if getattr(args, name) is not None:
      options[name] = getattr(args, name)
  if args.embed:
    if options:
      raise UserError(f"--{next(iter(options))}: --embed generates nothing; leave out either")
    answers = model.embed(valid_inputs, args.embed)
  else:
    answers = model.predict(
      valid_inputs, choices, origin=f"--input={args.input}", template=template, **options
    )
  unit = "files" if "image" in model.features else "lines"
  process.log(f"{args.workdir}: step {model.step}; {len(inputs)} {unit}")
  settings = [f"{name}={value}" for name, value in model.settings.items() if name not in options]
  if settings and not args.embed:
    process.log(f"settings of the model, unless a flag excludes them: {', '.join(settings)}")
  answers = texts.insert_blank_errors(inputs, answers)
  skipped = images.summarize_skipped(answers, unit)
  if skipped:
    process.log(f"{skipped}; `error` in the output says which")
  return answers


def _read_choices(model, path: str | None) -> list[str] | None:
  """Return the texts of --texts for a model of images and texts; None for other models.

  Raises:
    UserError: such a model has no --texts, or another model has it.
  """
  from t5x_like.inference import texts

  takes_texts = "text_input_tokens" in model.features
  if takes_texts and path is None:
    raise UserError(
      f"--texts={path}: the model is a model of images and texts, expected a file of texts to "
      "choose from"
    )
  if not takes_texts and path is not None:
    raise UserError(
      f"--texts={path}: the model is not a model of images and texts; leave the flag out"
    )
  if not takes_texts:
    return None
  return [text for text in texts.read_texts(path, flag="--texts") if text is not None]


def _select_template(model, inputs: list[Any], args) -> str | dict[str, Any] | None:
  """Return the chat template that answers the inputs, and report it.

  Raises:
    UserError: the template does not fit the model or the inputs.
  """
  from t5x_like.data.supervised import published_template
  from t5x_like.runtime import process

  has_encoder = "encoder_input_tokens" in model.features
  is_decoder = "decoder_target_tokens" in model.features and not has_encoder
  if args.template is not None and (not is_decoder or args.embed):
    raise UserError(
      f"--template={args.template}: only a decoder answers by a chat template; leave it out"
    )
  has_conversations = any(isinstance(text, list) for text in inputs)
  if "image" in model.features:
    has_conversations = False
  if has_conversations and not is_decoder:
    raise UserError(
      f"--input={args.input}: found a conversation, which only a decoder answers; give texts"
    )
  template = args.template or model.template
  if has_conversations:
    template = model.chat_template(args.template)
    if template is None:
      raise UserError(
        f"--input={args.input}: found a conversation, but the model has no chat template; name "
        "one by --template"
      )
  if template not in (None, "none"):
    process.log(f"answers by {published_template.describe(template, model.vocabulary)}")
  elif args.template is None and is_decoder and model.chat_template() is not None:
    process.log(
      "continues texts; the model has a chat template: --template=published answers by it"
    )
  return template


if __name__ == "__main__":
  command_line.run_program(main)
