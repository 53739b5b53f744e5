"""Run EleutherAI's lm_eval on a model.

  python -m tools.lm_eval --workdir=runs/gpt2 --tasks=lambada_openai,piqa

It needs lm_eval: pip install 't5x-like[eval]'. The model is a run's workdir, a Hugging Face
directory or a name on the Hub. Tasks are lm_eval's and those in --include_path. Results are printed
as lm_eval's table and written as JSON. From Python use
`lm_eval.simple_evaluate(model=tools.lm_eval.Model(WORKDIR), …)`.
"""

import functools
import json
import sys
from typing import Any

from t5x_like import command_line
from t5x_like.errors import UserError, handle_errors
from t5x_like.files import outputs
from t5x_like.files.paths import check_directory
from t5x_like.inference import prompts, strategies
from t5x_like.inference.stops import Stops
from t5x_like.library import model as library

_BATCH_SIZE = 64


@functools.cache
def model_class() -> type:
  """Return a subclass of lm_eval's model class that runs models of t5x_like.

  Raises:
    UserError: lm_eval is not installed.
  """
  try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.models.utils import normalize_gen_kwargs
  except ImportError:
    raise UserError("lm_eval: not installed; pip install 't5x-like[eval]'") from None

  class Model(TemplateLM):
    """A trained or published model that answers as lm_eval's own Hugging Face backend does.

    Args:
      workdir: workdir of a run, a Hugging Face directory, or a name on the Hub.
      batch_size: rows in a batch.
      longest: largest number of tokens of a text; None for the length that the model was made or
        trained for.
      start: begin every context with the start token, as documents begin in pretraining. Otherwise
        a context has only the special tokens that the tokenizer of published weights adds, and an
        empty context is the start token.
    """

    def __init__(
      self,
      workdir: str,
      *,
      batch_size: int = _BATCH_SIZE,
      longest: int | None = None,
      start: bool = False,
    ):
      super().__init__()
      self._model = library.load(workdir, batch_size=batch_size)
      self._prompts = prompts.Prompts(self._model, longest, start)
      self.backend = "seq2seq" if self._prompts.is_encoder_decoder else "causal"

    @property
    def eot_token_id(self) -> int:
      return self._model.vocabulary.eos_id

    @property
    def prefix_token_id(self) -> int:
      return self._prompts.start_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_) -> list[int]:
      if add_special_tokens is None:
        start_piece = self._model.vocabulary.pieces_of([self.prefix_token_id])[0]
        add_special_tokens = not string.startswith(start_piece)
      return self._prompts.encode(string, add_special_tokens)

    def _loglikelihood_tokens(
      self, requests, disable_tqdm: bool = False, **_
    ) -> list[tuple[float, bool]]:
      pairs = [(context, continuation) for _, context, continuation in requests]
      answers = []
      for (key, _, _), likelihood in zip(requests, self._prompts.likelihood(pairs)):
        answer = (likelihood.log_probability, likelihood.greedy)
        answers.append(answer)
        if key is not None:
          self.cache_hook.add_partial("loglikelihood", key, answer)
      return answers

    def loglikelihood_rolling(self, requests, disable_tqdm: bool = False) -> list[float]:
      likelihood = self._prompts.likelihood
      log_probabilities = []
      for request in requests:
        ids = self.tok_encode(request.args[0])
        log_probabilities.append(likelihood.rolling_log_probability(ids, self.prefix_token_id))
      return log_probabilities

    def generate_until(self, requests, disable_tqdm: bool = False) -> list[str]:
      # Texts of requests with equal options are continued together.
      groups: dict[str, list[int]] = {}
      for number, request in enumerate(requests):
        options_json = json.dumps(request.args[1], sort_keys=True)
        groups.setdefault(options_json, []).append(number)
      answers: dict[int, str] = {}
      for options_json, numbers in groups.items():
        options = normalize_gen_kwargs(json.loads(options_json))
        texts = [requests[number].args[0] for number in numbers]
        for number, answer in zip(numbers, self._generate(texts, options)):
          answers[number] = answer
          text, raw_options = requests[number].args[:2]
          self.cache_hook.add_partial("generate_until", (text, raw_options), answer)
      return [answers[number] for number in range(len(requests))]

    def _generate(self, texts: list[str], options: dict[str, Any]) -> list[str]:
      """Continue each text, up to the first of the strings in the option `until`.

      An encoder-decoder may generate more tokens for a longer context, as in lm_eval's own backend.
      """
      sampling_options = {}
      if options.get("do_sample") and options.get("temperature", 0.0) > 0:
        for name in ("temperature", "top_p", "top_k"):
          if name in options:
            sampling_options[name] = options[name]
      new_texts, _, _ = self._prompts.generate(
        [self.tok_encode(text) for text in texts],
        options["max_gen_toks"],
        strategies.choose_strategy(**sampling_options),
        extend_by_context=True,
        stops=Stops(tuple(stop for stop in options["until"] if stop)),
      )
      return new_texts

  return Model


def __getattr__(name: str):
  """Make the class `Model` when it is first used, because it needs lm_eval."""
  if name == "Model":
    return model_class()
  raise AttributeError(name)


@handle_errors
def main(argv: list[str] | None = None) -> None:
  parser = command_line.Parser(__doc__, prog="python -m tools.lm_eval")
  workdir_help = "workdir of a run, a Hugging Face directory or a name on the Hub"
  parser.add_argument(
    "--workdir", required=True, type=check_directory, metavar="DIR", help=workdir_help
  )
  parser.add_argument("--tasks", required=True, metavar="TASK,TASK", help="lm_eval's names")
  parser.add_argument("--num_fewshot", type=int, metavar="K", help="examples before each question")
  parser.add_argument("--limit", type=float, metavar="N", help="the first N examples of each task")
  parser.add_argument("--include_path", metavar="DIR", help="directory of more tasks, in YAML")
  parser.add_argument(
    "--batch_size", type=int, default=_BATCH_SIZE, metavar="N", help="rows in a batch"
  )
  parser.add_argument("--longest", type=int, metavar="N", help="the most tokens of a text")
  parser.add_argument(
    "--start", action="store_true", help="begin every context with the start token"
  )
  parser.add_argument("--output", metavar="FILE", help="the results as JSON")
  args = parser.parse_args(sys.argv[1:] if argv is None else argv)
  output = outputs.OutputFile(args.output) if args.output else None
  model = model_class()(
    args.workdir, batch_size=args.batch_size, longest=args.longest, start=args.start
  )
  from lm_eval import evaluator
  from lm_eval.tasks import TaskManager
  from lm_eval.utils import make_table

  tasks = TaskManager(include_path=args.include_path)
  names = args.tasks.split(",")
  if unknown := [name for name in names if name not in tasks.all_tasks]:
    raise UserError(
      f"--tasks: lm_eval has no task {unknown[0]!r}; give its folder with --include_path"
    )
  results = evaluator.simple_evaluate(
    model=model, tasks=names, num_fewshot=args.num_fewshot, limit=args.limit, task_manager=tasks
  )
  print(make_table(results))
  if output:
    output.write([json.dumps(results["results"], indent=1, default=str) + "\n"])


if __name__ == "__main__":
  sys.exit(main())
