"""Fine-tune with PyTorch and transformers on the batches of a finished run, as a baseline.

  python -m tools.torch_baseline --workdir=runs/benchmarks/rte/rte/5e-05-0 --model=DIR

The workdir is a run of BERT on the task `classification`, made by `tools.encoder_table`. DIR is the
encoder in Hugging Face's layout from which the run started. The run's config gives the batches,
their order and lengths, the steps, the schedule, the clipping, AdamW, dropout and the steps of
evaluation. Only the random numbers of dropout and of the new head differ. The scores of all
evaluations, the mean losses before each, the CPU seconds and the versions are written to
`torch.json` in the workdir; `tools.encoder_table` reads them into its table. It needs the extra
`parity`.
"""

import importlib.util
import json
import sys
import time
from importlib import metadata

if importlib.util.find_spec("torch") and __name__ == "__main__":
  import torch  # noqa: F401 (before tensorflow: both bring an OpenMP runtime)

import numpy as np

from t5x_like import command_line, slots
from t5x_like.errors import UserError, handle_errors

RESULT_FILE = "torch.json"
_LOG_EVERY = 20  # steps


@handle_errors
def main(argv: list[str] | None = None) -> None:
  parser = command_line.Parser(__doc__, prog="python -m tools.torch_baseline")
  parser.add_argument("--workdir", required=True, metavar="DIR", help="workdir of the finished run")
  parser.add_argument(
    "--model", required=True, metavar="DIR", help="encoder in Hugging Face's layout"
  )
  parser.add_argument("--max_steps", type=int, metavar="N", help="stop after N steps, for a trial")
  args, _ = parser.parse(argv)
  from t5x_like.saved_model.workdir import find_run
  from t5x_like.training import workdir as workdirs

  run = find_run(args.workdir, None)
  if run is None:
    raise UserError(f"--workdir={args.workdir}: holds no run; give one of tools.encoder_table")
  if not importlib.util.find_spec("torch") or not importlib.util.find_spec("transformers"):
    raise UserError("torch and transformers are not installed: pip install 't5x-like[parity]'")
  config = run.config
  names = (config.model.name, config.task.name, config.optimizer.name)
  if names != ("bert", "classification", "adamw"):
    raise UserError(
      f"--workdir={args.workdir}: found {config.model.name} on {config.task.name} with "
      f"{config.optimizer.name}, expected bert on classification with adamw"
    )
  result = fine_tune(config, args.model, args.max_steps or config.total_steps)
  workdirs.write_json(args.workdir, RESULT_FILE, result)
  print(json.dumps(result), flush=True)


def fine_tune(config, directory: str, steps: int) -> dict:
  """Fine-tune by a run's config; return the scores of all evaluations, CPU seconds and versions.

  Args:
    config: resolved config of the run.
    directory: encoder in Hugging Face's layout.
    steps: number of steps, at most the run's.
  """
  import torch
  import transformers

  from t5x_like.data import loader
  from t5x_like.data import task as task_lib
  from t5x_like.training import buckets
  from t5x_like.training.schedule import SCHEDULES

  arguments = config.task.to_dict()
  name = arguments.pop("name")
  task = task_lib.build(name, split=config.train_split, **arguments)
  eval_task = task_lib.build(name, split=config.eval_split, **arguments)
  schedule = slots.make("config.schedule", config.schedule, SCHEDULES)
  torch.manual_seed(config.seed)
  model = transformers.BertForSequenceClassification.from_pretrained(
    directory,
    num_labels=len(task.classes) or 1,
    hidden_dropout_prob=config.model.dropout,
    attention_probs_dropout_prob=config.model.dropout,
  ).train()
  optimizer = _make_optimizer(model, config.optimizer)
  batches = loader.train_batches(task, batch_size=config.batch_size, seed=config.seed)
  scores = []
  losses = []
  start = time.process_time()
  for step in range(steps):
    batch = buckets.cut_batch(next(batches), task.features, task.buckets, task.vocabulary.pad_id)
    for group in optimizer.param_groups:
      group["lr"] = float(schedule(step))
    logits_BC = model(**bert_inputs(batch, task.vocabulary.pad_id)).logits
    loss = _mean_loss(logits_BC, batch, is_regression=not task.classes)
    losses.append(loss.item())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm or float("inf"))
    optimizer.step()
    if (step + 1) % _LOG_EVERY == 0:
      print(f"step {step + 1}/{steps}", file=sys.stderr, flush=True)
    if (step + 1) % config.eval_every == 0 or step + 1 == steps:
      scores_and_loss = _evaluate(model, eval_task, config)
      scores.append({"step": step + 1, "loss": float(np.mean(losses))} | scores_and_loss)
      losses.clear()
  versions = {name: metadata.version(name) for name in ("torch", "transformers")}
  return {
    "scores": scores,
    "cpu_seconds": round(time.process_time() - start, 1),
    "versions": versions,
  }


def _make_optimizer(model, settings):
  """Return AdamW with the settings of a config; only matrices decay."""
  import torch

  matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
  vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
  groups = [
    {"params": matrices, "weight_decay": settings.weight_decay},
    {"params": vectors, "weight_decay": 0.0},
  ]
  return torch.optim.AdamW(groups, betas=(settings.b1, settings.b2), eps=settings.eps)


def _mean_loss(logits_BC, batch: dict[str, np.ndarray], is_regression: bool):
  """Return the mean loss over the examples of a batch, weighted by `example_weights`."""
  import torch

  label_B = torch.tensor(batch["label"])
  weights_B = torch.tensor(batch["example_weights"])
  if is_regression:
    loss_B = (logits_BC[:, 0] - label_B) ** 2
  else:
    loss_B = torch.nn.functional.cross_entropy(logits_BC, label_B.long(), reduction="none")
  return (loss_B * weights_B).sum() / weights_B.sum()


def bert_inputs(batch: dict[str, np.ndarray], pad_id: int) -> dict:
  """Return a batch of the task `classification` as the arguments of transformers' BERT."""
  import torch

  tokens_BT = torch.tensor(batch["encoder_input_tokens"]).long()
  types_BT = torch.tensor(batch["encoder_token_types"]).long()
  return {
    "input_ids": tokens_BT,
    "token_type_ids": types_BT,
    "attention_mask": (tokens_BT != pad_id).long(),
  }


def _evaluate(model, task, config) -> dict[str, float]:
  """Return the scores of all examples with a label, by the metrics of the run's evaluator."""
  import torch

  from t5x_like.data import loader
  from t5x_like.metrics.classification import Classification, Correlation
  from t5x_like.training import buckets

  score_names = ("accuracy",)
  for evaluator in config.evals.values():
    if evaluator.name == "classification":
      score_names = tuple(evaluator.scores)
      break
  metric = Classification(len(task.classes), score_names) if task.classes else Correlation()
  gold = []
  predicted = []
  model.eval()
  with torch.no_grad():
    for batch in loader.eval_batches(task, batch_size=config.batch_size):
      features = {name: batch[name] for name in task.features}
      cut = buckets.cut_batch(features, task.features, task.buckets, task.vocabulary.pad_id)
      logits_BC = model(**bert_inputs(cut, task.vocabulary.pad_id)).logits.numpy()
      prediction_B = logits_BC.argmax(-1) if task.classes else logits_BC[:, 0]
      is_real_B = batch["example_weights"] > 0
      gold += batch["label"][is_real_B].tolist()
      predicted += prediction_B[is_real_B].tolist()
  model.train()
  return metric(gold, predicted)


if __name__ == "__main__":
  command_line.run_program(main)
