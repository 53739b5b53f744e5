"""Runs EleutherAI's lm_eval on a model of ours: python -m tools.lm_eval --workdir=runs/gpt2
--tasks=lambada_openai,piqa

Needs lm_eval: pip install 't5x-like[eval]'. The model is a run's, a Hugging Face directory's or a
name of the Hub. Tasks are lm_eval's, and those of --include_path; results are printed as its table
and written as JSON. From Python: `lm_eval.simple_evaluate(model=tools.lm_eval.Model(WORKDIR), …)`.
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

_ROWS = 64  # in a batch


@functools.cache
def model_class() -> type:
  """Make lm_eval's model class, with our models behind it.

  Raises:
    UserError: lm_eval is not installed.
  """
  try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.models.utils import normalize_gen_kwargs
  except ImportError:
    raise UserError("lm_eval: not installed; pip install 't5x-like[eval]'") from None

  class Model(TemplateLM):
    """A trained model, ours or a published one, driven like the models of lm_eval's own Hugging
    Face backend.

    Args:
      workdir: of a run, or a Hugging Face directory, or a name of the Hub.
      batch_size: rows in a batch.
      longest: the most tokens of a text; None for the length that the model was made or trained
        for.
      start: whether every context begins with the start token, as our documents do; otherwise only
        what the tokenizer of published weights adds by itself stands around a context, and the
        start token in an empty one.
    """

    def __init__(
      self,
      workdir: str,
      *,
      batch_size: int = _ROWS,
      longest: int | None = None,
      start: bool = False,
    ):
      super().__init__()
      self._opened = library.load(workdir, batch_size=batch_size)
      self._prompts = prompts.Prompts(self._opened, longest, start)
      self.backend = "seq2seq" if self._prompts.both else "causal"

    @property
    def eot_token_id(self) -> int:
      return self._opened.vocabulary.eos_id

    @property
    def prefix_token_id(self) -> int:
      return self._prompts.start_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_) -> list[int]:
      if add_special_tokens is None:
        first = self._opened.vocabulary.pieces_of([self.prefix_token_id])[0]
        add_special_tokens = not string.startswith(first)
      return self._prompts.encode(string, add_special_tokens)

    def _loglikelihood_tokens(
      self, requests, disable_tqdm: bool = False, **_
    ) -> list[tuple[float, bool]]:
      likelihoods = self._prompts.likelihood(
        [(context, continuation) for _, context, continuation in requests]
      )
      scored = [(answer.log_probability, answer.greedy) for answer in likelihoods]
      for (key, _, _), answer in zip(requests, scored):
        if key is not None:
          self.cache_hook.add_partial("loglikelihood", key, answer)
      return scored

    def loglikelihood_rolling(self, requests, disable_tqdm: bool = False) -> list[float]:
      score = self._prompts.likelihood.rolling_log_probability
      start = self.prefix_token_id
      return [score(self.tok_encode(request.args[0]), start) for request in requests]

    def generate_until(self, requests, disable_tqdm: bool = False) -> list[str]:
      groups: dict[str, list[int]] = {}
      for number, request in enumerate(requests):
        groups.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(number)
      out: dict[int, str] = {}
      for key, numbers in groups.items():
        options = normalize_gen_kwargs(json.loads(key))
        texts = [requests[number].args[0] for number in numbers]
        for number, text, answer in zip(numbers, texts, self._generate(texts, options)):
          out[number] = answer
          self.cache_hook.add_partial(
            "generate_until", (text, requests[number].args[1]), out[number]
          )
      return [out[number] for number in range(len(requests))]

    def _generate(self, texts: list[str], options: dict[str, Any]) -> list[str]:
      """Return the new text after each, up to one of `until`.

      An encoder-decoder makes as many tokens as with the harness's own backend.
      """
      sampled = options.get("do_sample") and options.get("temperature", 0.0) > 0
      flags = {
        name: options[name]
        for name in ("temperature", "top_p", "top_k")
        if sampled and name in options
      }
      contexts = [self.tok_encode(text) for text in texts]
      new = options["max_gen_toks"]
      stops = Stops(tuple(filter(None, options["until"])))
      return self._prompts.generate(
        contexts, new, strategies.choose_strategy(**flags), extend_by_context=True, stops=stops
      )[0]

  return Model


def __getattr__(name: str):
  if name == "Model":
    return model_class()
  raise AttributeError(name)


@handle_errors
def main(argv: list[str] | None = None) -> None:
  parser = command_line.Parser(__doc__, prog="python -m tools.lm_eval")
  workdir_help = "of the model, or a Hugging Face directory, or a name of the Hub"
  parser.add_argument(
    "--workdir", required=True, type=check_directory, metavar="DIR", help=workdir_help
  )
  parser.add_argument("--tasks", required=True, metavar="TASK,TASK", help="lm_eval's names")
  parser.add_argument("--num_fewshot", type=int, metavar="K", help="examples before each question")
  parser.add_argument("--limit", type=float, metavar="N", help="the first N examples of each task")
  parser.add_argument("--include_path", metavar="DIR", help="of tasks in YAML")
  parser.add_argument("--batch_size", type=int, default=_ROWS, metavar="N", help="rows in a batch")
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
