"""Answer zero- and few-shot questions from files, by likelihood or by generation.

Examples:
  python -m tools.few_shot --workdir=runs/gpt2 --input=arc_easy.jsonl.gz \\
      --input=lambada_openai.jsonl.gz
  python -m tools.few_shot --workdir=runs/gpt2 --input=mmlu_dev_test.jsonl.gz --shots=5 \\
      --output=results.json
  python -m tools.few_shot --workdir=runs/gpt2 --input=novels.jsonl.gz --stride=512

A file is JSON lines, plain or compressed. Its keys decide the kind of its questions:

query, choices, gold: the likeliest choice; accuracy, and accuracy_norm by the log-probability of a
  character.
context_options, continuation, gold: the context after which the continuation is likeliest.
question, choices, answer (A-Z): MMLU's; the letter, after a header with the subject. Examples come
  from the split dev of the same subject.
context, continuation: the next words; accuracy (all greedy), perplexity.
context, answer (, aliases): an answer, generated to the end of the line; exact match, or match of
  the last number where the row has chain_of_thought and a number, or the answer is a number.
  Several correct answers are a list, or TriviaQA's object.
text: bits per byte, perplexity per token and per word, with windows `--stride` apart.

Examples before a question are drawn by --seed from --examples or, without one, from the other rows
of the file, except rows with the same question. A file with fewer rows than --shots needs is left
out. Contexts longer than what the model reads lose their beginning, and are counted as `truncated`.
Answers that reach --max_new_tokens before their end are counted as `unfinished`. A file with an
answer that is longer than what the model reads is left out, and the exit code is then 2. --input
may be a pattern in quotes. Scores have 95 % bootstrap intervals over questions.
--template=published puts questions into the decoder's own chat template.
python -m t5x_like.evaluate --suite=… --questions=FILE puts the scores into a suite's table.
"""

import dataclasses
import json
import sys

from t5x_like import command_line
from t5x_like.errors import UserError, handle_errors
from t5x_like.files import outputs
from t5x_like.files.paths import check_directory
from t5x_like.inference import asking, questions
from t5x_like.library import model as library


def _make_parser() -> command_line.Parser:
  parser = command_line.Parser(__doc__, prog="python -m tools.few_shot")
  parser.add_argument(
    "--workdir",
    required=True,
    type=check_directory,
    metavar="DIR",
    help="workdir of a run, a Hugging Face directory, or a name on the Hub",
  )
  parser.add_argument(
    "--input", required=True, action="append", metavar="FILE", help="file of questions; repeatable"
  )
  parser.add_argument(
    "--shots", type=int, default=0, metavar="K", help="examples before each question (default: 0)"
  )
  parser.add_argument("--examples", metavar="FILE", help="file of the examples for --shots")
  parser.add_argument(
    "--seed", type=int, default=0, help="seed of the choice of examples (default: 0)"
  )
  parser.add_argument("--limit", type=int, metavar="N", help="use only N rows of each file")
  parser.add_argument("--batch_size", type=int, default=32, metavar="N", help="rows in a batch")
  parser.add_argument(
    "--stride", type=int, metavar="N", help="distance of windows over texts (default: their length)"
  )
  parser.add_argument(
    "--max_new_tokens",
    type=int,
    metavar="N",
    help="longest generated answer (default: 64, or 256 for worked answers)",
  )
  parser.add_argument("--template", metavar="NAME", help=questions.TEMPLATE)
  parser.add_argument("--output", metavar="FILE", help="file for the results as JSON")
  return parser


def _check_flags(args) -> None:
  """Refuse numbers and combinations of flags that cannot be used."""
  positive = (args.batch_size, args.limit, args.stride, args.max_new_tokens)
  if args.shots < 0 or any(number is not None and number < 1 for number in positive):
    raise UserError(
      "--shots, --batch_size, --limit, --stride and --max_new_tokens: expected positive numbers"
    )
  if args.examples and not args.shots:
    raise UserError(
      "--examples: only with --shots; omit it, or give the number of examples before each question"
    )


@handle_errors
def main(argv: list[str] | None = None) -> None:
  args = _make_parser().parse_args(sys.argv[1:] if argv is None else argv)
  _check_flags(args)
  paths = questions.find_files(args.input)
  files = {name: questions.read_questions(path) for name, path in paths.items()}
  inputs = [*(file.path for file in files.values()), args.examples]
  output = outputs.OutputFile(args.output, inputs=inputs) if args.output else None
  examples = questions.read_questions(args.examples) if args.examples else None
  option_names = [field.name for field in dataclasses.fields(questions.Options)]
  options = questions.Options(**{name: getattr(args, name) for name in option_names})
  model = library.open_model(args.workdir, None, (), None, args.batch_size)
  print(asking.describe_template(model, args.template), flush=True)
  ask = asking.Asker(model, args.template)
  results = {}
  failures = []
  for name, file in files.items():
    try:
      prompt_set = questions.build_prompts(file, options, examples)
      scores = ask(prompt_set, asking.Progress(file.path))
    except UserError as error:
      failures.append(str(error))
      print(f"{file.path}: left out: {error}", flush=True)
      continue
    results[name] = scores.metrics | {"intervals": scores.intervals}
    print(f"{file.path}: {scores.format()}", flush=True)
  if output:
    output.write([json.dumps(results, indent=1) + "\n"])
  if failures:
    if len(files) == 1:
      raise UserError(failures[0])
    raise UserError(f"{len(failures)} of {len(files)} files left out: {failures[0]}")


if __name__ == "__main__":
  sys.exit(main())
