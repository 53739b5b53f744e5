"""Runs EleutherAI's lm_eval on a model of ours: python -m tools.lm_eval --workdir=runs/gpt2 --tasks=lambada_openai,piqa

Needs `pip install lm_eval` (requirements-lm-eval.txt). Tasks are lm_eval's, and those of --include_path; results are
printed as its table and written as JSON. From Python: `lm_eval.simple_evaluate(model=tools.lm_eval.Model(WORKDIR), …)`.
"""

import functools
import json
import pathlib
import sys
from typing import Any

from t5x_like import command_line
from t5x_like.errors import UserError, door

_PROBE = 64  # rows in a batch


@functools.cache
def model_class() -> type:
  """lm_eval's base class, with our models behind it.

  Raises:
    UserError: lm_eval is not installed.
  """
  try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
  except ImportError:
    raise UserError("lm_eval: not installed; pip install -r requirements-lm-eval.txt") from None

  class Model(TemplateLM):
    """A trained model, ours or converted, as lm_eval's own Hugging Face backend would drive it.

    Args:
      workdir: of the run, or of `tools.convert_hf`.
      batch_size: rows in a batch.
      longest: the most tokens of a text; None is what the model was made or trained for.
      start: whether every context begins with the start token, as our documents do; lm_eval's backend begins only empty
        ones with it.
    """

    def __init__(self, workdir: str, *, batch_size: int = _PROBE, longest: int | None = None, start: bool = False):
      super().__init__()
      from t5x_like.data.vocabularies import start_id
      from t5x_like.inference import likelihood
      from t5x_like.training import trained

      self._opened = trained.open_model(workdir, batch_size)
      self._vocabulary = self._opened.vocabulary
      self._likelihood = likelihood.Likelihood(self._opened.run, self._opened.features, longest)
      self._seq2seq = "encoder_input_tokens" in self._opened.features
      self._start, self._start_id = start, start_id(self._vocabulary)
      self.backend = "seq2seq" if self._seq2seq else "causal"

    @property
    def eot_token_id(self) -> int:
      return self._vocabulary.eos_id

    @property
    def prefix_token_id(self) -> int:
      return self._start_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_) -> list[int]:
      ids = [int(i) for i in self._vocabulary.encode(string)]
      return [*ids, self._vocabulary.eos_id] if self._seq2seq else ids

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
      if self._seq2seq:
        return self.tok_encode(context), self.tok_encode(continuation)
      return super()._encode_pair(context, continuation)

    def _loglikelihood_tokens(self, requests, disable_tqdm: bool = False, **_) -> list[tuple[float, bool]]:
      pairs = []
      for _, context, continuation in requests:
        begin = [self.prefix_token_id] if self._start and not self._seq2seq else []
        pairs.append(([*begin, *context] or [self.prefix_token_id], continuation))
      scored = [(one.log_probability, one.greedy) for one in self._likelihood(pairs)]
      for (key, _, _), answer in zip(requests, scored):
        if key is not None:
          self.cache_hook.add_partial("loglikelihood", key, answer)
      return scored

    def loglikelihood_rolling(self, requests, disable_tqdm: bool = False) -> list[float]:
      out = []
      for (text,) in (request.args for request in requests):
        windows = get_rolling_token_windows(
          token_list=self.tok_encode(text),
          prefix_token=self.prefix_token_id,
          max_seq_len=self._likelihood.longest - (not self._seq2seq),
          context_len=1,
        )
        pairs = [make_disjoint_window(window) for window in windows]
        out.append(sum(one.log_probability for one in self._likelihood(pairs)))
      return out

    def generate_until(self, requests, disable_tqdm: bool = False) -> list[str]:
      from t5x_like.inference import generation, strategies

      groups: dict[str, list[int]] = {}
      for number, request in enumerate(requests):
        groups.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(number)
      out: dict[int, str] = {}
      for key, numbers in groups.items():
        options = json.loads(key)
        until = options.get("until") or []
        stops = [until] if isinstance(until, str) else list(until)
        flags: dict[str, Any] = {}
        if options.get("do_sample") and options.get("temperature", 1.0) > 0:
          flags = {name: options[name] for name in ("temperature", "top_p", "top_k") if name in options}
        kind = generation.TextToText if self._seq2seq else generation.Continuation
        new = int(options.get("max_gen_toks", 256))
        opened = self._opened
        predict = kind(opened.model, self._vocabulary, opened.features, strategies.choose(**flags), new)
        texts = [requests[number].args[0] for number in numbers]
        room = self._likelihood.longest - (0 if self._seq2seq else new)
        ids = [self._prompt(text)[-max(room, 1) :] for text in texts]
        for number, answer in zip(numbers, predict(opened.run, ids, texts)):
          out[number] = _cut(answer["prediction"], stops)
      return [out[number] for number in range(len(requests))]

    def _prompt(self, text: str) -> list[int]:
      ids = self.tok_encode(text)
      if self._seq2seq:
        return ids
      return [self.prefix_token_id, *ids] if self._start or not ids else ids

  return Model


def _cut(text: str, stops: list[str]) -> str:
  """The text up to the first of the stops."""
  for stop in filter(None, stops):
    text = text.split(stop)[0]
  return text


def __getattr__(name: str):
  if name == "Model":
    return model_class()
  raise AttributeError(name)


@door
def main(argv: list[str] | None = None) -> None:
  parser = command_line.Parser(__doc__, prog="python -m tools.lm_eval")
  parser.add_argument("--workdir", required=True, metavar="DIR", help="of the model")
  parser.add_argument("--tasks", required=True, metavar="TASK,TASK", help="lm_eval's names")
  parser.add_argument("--num_fewshot", type=int, metavar="K", help="examples before each question")
  parser.add_argument("--limit", type=float, metavar="N", help="the first N examples of each task")
  parser.add_argument("--include_path", metavar="DIR", help="of tasks in YAML")
  parser.add_argument("--batch_size", type=int, default=_PROBE, metavar="N", help="rows in a batch")
  parser.add_argument("--longest", type=int, metavar="N", help="the most tokens of a text")
  parser.add_argument("--start", action="store_true", help="begin every context with the start token")
  parser.add_argument("--output", metavar="FILE", help="the results as JSON")
  args = parser.parse_args(sys.argv[1:] if argv is None else argv)
  made = model_class()(args.workdir, batch_size=args.batch_size, longest=args.longest, start=args.start)
  from lm_eval import evaluator
  from lm_eval.tasks import TaskManager
  from lm_eval.utils import make_table

  tasks = TaskManager(include_path=args.include_path)
  names = args.tasks.split(",")
  if unknown := [name for name in names if name not in tasks.all_tasks]:
    raise UserError(f"--tasks: lm_eval has no task {unknown[0]!r}; give its folder with --include_path")
  found = evaluator.simple_evaluate(
    model=made, tasks=names, num_fewshot=args.num_fewshot, limit=args.limit, task_manager=tasks
  )
  print(make_table(found))
  if args.output:
    path = pathlib.Path(args.output)
    path.write_text(json.dumps(found["results"], indent=1, default=str) + "\n", encoding="utf-8")


if __name__ == "__main__":
  sys.exit(main())
