"""Pretrain, evaluate and fine-tune a small T5, and write its report (`make quickstart`).

Each stage is an ordinary command of this project, which is printed before it runs. A stage whose
result exists is skipped. The pretraining is killed once, half-way, and the same command resumes it:
the steps that both processes computed must agree to the last bit. At the same time, on the second
core, the same model is fine-tuned from fresh weights on four tasks made of the same corpus. The
last stage fine-tunes it from the checkpoint. At the end the program prints the scores of both, and
commands to continue with.
"""

import argparse
import contextlib
import dataclasses
import json
import pathlib
import re
import shlex
import subprocess
import sys
import textwrap
import time
from typing import Any

from t5x_like import recipes
from t5x_like.benchmarks import comparison
from t5x_like.benchmarks.suites import docstrings
from t5x_like.errors import UserError, handle_errors
from t5x_like.files.paths import check_directory
from t5x_like.report.writer import read_metrics
from t5x_like.saved_model.workdir import IDENTITY_FILE, read_history, read_identity

RECIPE = "configs/t5/quickstart.py"
# Fine-tuning steps of each task after the recipe's number of pretraining steps. With more steps and
# labels, pretraining helps less.
_TUNING_STEPS = 40
_SENTENCES = (
  "Returns the <extra_id_0> of the array along the given <extra_id_1>.",
  "Raises an <extra_id_0> if the file does not exist.",
  "If True, the output <extra_id_0> the same shape as the input.",
  "The number of <extra_id_0> to use. If None, use all available <extra_id_1>.",
)
_TUNING = {
  "batch_size": 32,
  "task.inputs_length": 64,
  "task.targets_length": 16,
  "schedule.name": "linear",
  "schedule.learning_rate": 2e-2,
  "model.dropout": 0.0,
  "evals.dev.max_examples": 32,  # nothing is selected by it: there is one evaluation
}
_TASKS = tuple(docstrings.SUITE.tasks)
_POLL_SECONDS = 1.0  # each poll reads the metrics of all steps
_COLUMNS = 80  # the width of the terminal
# Metrics of a step that depend on nothing but the parameters and the examples.
_EXACT_METRICS = ("train/loss", "train/accuracy", "train/gradient_norm", "train/parameter_norm")


@dataclasses.dataclass(frozen=True)
class Resumption:
  """A kill of the run and its continuation by another process.

  Attributes:
    killed: the last step that the killed process recorded.
    resumed: the step of the checkpoint from which the next process continued.
    repeated: the number of steps that both computed, with the same metrics.
  """

  killed: int
  resumed: int
  repeated: int


@handle_errors
def main(argv: list[str] | None = None) -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    "--data_dir", default="data", help="directory of corpus and token store (default: %(default)s)"
  )
  help_text = "the run's directory (default: %(default)s)"
  parser.add_argument("--workdir", default="runs/quickstart", type=check_directory, help=help_text)
  parser.add_argument(
    "--steps",
    type=int,
    help="pretrain for fewer or more steps than the recipe says, and fine-tune in proportion",
  )
  args = parser.parse_args(argv)
  start = time.monotonic()
  data = pathlib.Path(args.data_dir)
  workdir = pathlib.Path(args.workdir)
  recipe = recipes.load(RECIPE)
  num_steps = args.steps or recipe.total_steps
  store = _prepare_data(data, recipe.model.vocab_size)
  train_flags = [f"--config={RECIPE}", f"--workdir={workdir}"]
  if str(store) != "data/docstrings":
    train_flags.append(f"--config.task.store={store}")
  if args.steps:
    train_flags.append(f"--config.total_steps={args.steps}")
  suite_flags = _suite_flags(workdir, data, num_steps / recipe.total_steps)
  output = workdir / "suites" / f"docstrings-{num_steps}"
  scratch = output / "from_scratch"

  _print_title("3/5 pretraining; at the same time, four tasks learned from fresh weights")
  with _Command("t5x_like.train", *train_flags) as training:
    training.wait_for_file(workdir / IDENTITY_FILE)
    scratch_flags = (*suite_flags, "--from_scratch", f"--output={scratch}")
    log = workdir / "from_scratch.log"
    with _Command("t5x_like.evaluate", *scratch_flags, log=log) as from_scratch:
      resumption = _kill_and_resume(training, train_flags, workdir, num_steps // 2)
      _print_title("4/5 sentences with gaps, filled by the model")
      sentences = _complete_sentences(workdir)
      from_scratch.wait()
  _print_title("5/5 the four tasks learned from the checkpoint")
  table = _fine_tune(suite_flags, output, scratch)
  _print_results(workdir, train_flags, table, sentences, resumption, time.monotonic() - start)


class _Command:
  """A command of this project in its own process, which is killed when the block is left.

  Args:
    module, arguments: the arguments of `python -m`.
    log: the file of its output; None is this program's own output.
  """

  def __init__(self, module: str, *arguments: str, log: pathlib.Path | None = None):
    self._module = module
    self._log = log
    self._start = time.monotonic()
    command = ["-m", module, *arguments]
    words = ["$ python", *map(shlex.quote, command)]
    if log:
      words.append(f"> {log}")
    print(_wrap(words), flush=True)
    with contextlib.ExitStack() as stack:
      output = None
      if log:
        log.parent.mkdir(parents=True, exist_ok=True)
        output = stack.enter_context(log.open("w", encoding="utf-8"))
      self._process = subprocess.Popen(
        [sys.executable, *command], stdout=output, stderr=subprocess.STDOUT if log else None
      )

  def __enter__(self) -> "_Command":
    return self

  def __exit__(self, *exception) -> None:
    self.kill()

  def is_running(self) -> bool:
    return self._process.poll() is None

  def kill(self) -> None:
    """Kill the process with SIGKILL, which it can neither catch nor prepare for."""
    self._process.kill()
    self._process.wait()

  def wait_for_file(self, path: pathlib.Path) -> None:
    """Wait until a file exists or the process has ended."""
    while self.is_running() and not path.exists():
      time.sleep(_POLL_SECONDS)

  def wait(self) -> None:
    """Wait for the end of the process, and print its seconds.

    Raises:
      UserError: it ended with another exit code than 0.
    """
    code = self._process.wait()
    if code:
      output = f"the end of {self._log}" if self._log else "its output above"
      raise UserError(f"python -m {self._module} ended with exit code {code}; see {output}")
    print(f"    {time.monotonic() - self._start:.0f} s", flush=True)


def _wrap(words: list[str]) -> str:
  """Join the words of a command into lines that fit a terminal and can be pasted into a shell."""
  lines = []
  line = words[0]
  for word in words[1:]:
    if len(line) + len(word) + 3 > _COLUMNS:
      lines.append(f"{line} \\")
      line = f"    {word}"
    else:
      line = f"{line} {word}"
  return "\n".join([*lines, line])


def _paragraph(text: str) -> str:
  """Return a text in lines of the terminal's width, with an empty line after it."""
  return textwrap.fill(text, _COLUMNS) + "\n\n"


def _align(table: str) -> str:
  """Return the rows of a Markdown table as columns of text."""
  header, _, *lines = table.strip().splitlines()
  rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in (header, *lines)]
  widths = [max(map(len, column)) for column in zip(*rows)]
  aligned = []
  for row in rows:
    cells = [cell.ljust(width) for cell, width in zip(row, widths)]
    aligned.append("  ".join(["", *cells]).rstrip())
  return "\n".join(aligned)


def _print_title(title: str) -> None:
  print(f"\n=== {title}", flush=True)


def _run(module: str, *arguments: str) -> None:
  with _Command(module, *arguments) as command:
    command.wait()


def _prepare_data(data: pathlib.Path, vocab_size: int) -> pathlib.Path:
  """Train the vocabulary, tokenise the corpus and return the token store."""
  vocabulary = data / "vocabulary"
  store = data / "docstrings"
  source = ["--source=docstrings", f"--data_dir={data / 'tfds'}"]
  _print_title(f"1/5 {vocab_size:,} SentencePiece ids from the installed packages' docstrings")
  size = ["--kind=unigram", f"--size={vocab_size}", f"--output={vocabulary}"]
  _run(f"{__package__}.train_vocabulary", *source, *size)
  _print_title("2/5 tokens")
  _run(f"{__package__}.prepare_data", *source, f"--vocabulary={vocabulary}", f"--output={store}")
  return store


def _kill_and_resume(
  training: _Command, train_flags: list[str], workdir: pathlib.Path, kill_step: int
) -> Resumption | None:
  """Kill the training at a step and resume it; return None if it had passed that step before.

  Raises:
    UserError: a step that both processes computed differs in a metric, or a process failed.
  """
  rows = _kill_at(training, workdir, kill_step)
  if rows is None:
    training.wait()
    return None
  killed = rows[-1]["step"]
  print(f"\n    killed at step {killed:,} (SIGKILL); the same command again:", flush=True)
  _run("t5x_like.train", *train_flags)
  starts = [row for row in read_history(workdir) if "config_digest" in row]
  resumed = starts[-1]["step"]
  before = {row["step"]: row for row in rows if row["step"] > resumed}
  repeated = 0
  for row in _training_rows(workdir):
    expected = before.get(row["step"])
    if expected is None:
      continue
    for name in _EXACT_METRICS:
      if row[name] != expected[name]:
        raise UserError(
          f"{workdir}: step {row['step']}: {name}: found {row[name]!r} after the kill and "
          f"{expected[name]!r} before; this should not happen"
        )
    repeated += 1
  return Resumption(killed, resumed, repeated)


def _kill_at(
  training: _Command, workdir: pathlib.Path, kill_step: int
) -> list[dict[str, Any]] | None:
  """Kill the training once it has recorded a step; return the rows of its training metrics.

  Return None if it ended before, or had recorded the step before this start.
  """
  rows = _training_rows(workdir)
  if rows and rows[-1]["step"] >= kill_step:
    return None
  while training.is_running():
    rows = _training_rows(workdir)
    if rows and rows[-1]["step"] >= kill_step:
      training.kill()
      return _training_rows(workdir)
    time.sleep(_POLL_SECONDS)
  return None


def _training_rows(workdir: pathlib.Path) -> list[dict[str, Any]]:
  return [row for row in read_metrics(workdir) if _EXACT_METRICS[0] in row]


def _complete_sentences(workdir: pathlib.Path) -> list[str]:
  """Return sentences with gaps that the pretrained model filled."""
  sample = workdir / "try_me.txt"
  filled = workdir / "filled.jsonl"
  sample.write_text("".join(f"{sentence}\n" for sentence in _SENTENCES), encoding="utf-8")
  flags = [f"--workdir={workdir}", f"--input={sample}", f"--output={filled}"]
  _run("t5x_like.predict", *flags)
  return [json.loads(line)["filled"] for line in filled.read_text(encoding="utf-8").splitlines()]


def _suite_flags(workdir: pathlib.Path, data: pathlib.Path, share: float) -> list[str]:
  """Return the flags of the fine-tunings; `share` is the share of the recipe's steps."""
  steps = max(2, int(_TUNING_STEPS * share))
  values = _TUNING | {
    "schedule.warmup_steps": steps // 10,
    "task.cache": data / "prepared",
    "total_steps": steps,
    "eval_every": steps,
    "checkpoint.every": steps,
  }
  flags = [f"--workdir={workdir}", "--suite=docstrings", f"--data_dir={data / 'tfds'}"]
  return flags + [f"--config.{key}={value}" for key, value in values.items()]


def _fine_tune(
  suite_flags: list[str], output: pathlib.Path, scratch: pathlib.Path
) -> dict[str, Any]:
  """Fine-tune from the checkpoint, half of the tasks on each core, and compare with fresh weights.

  Return the result of `comparison.compare_results`.
  """
  evaluate = ("t5x_like.evaluate", *suite_flags, f"--output={output}")
  half = len(_TASKS) // 2
  with contextlib.ExitStack() as stack:
    commands = []
    for tasks in (_TASKS[:half], _TASKS[half:]):
      log = output / f"{'-'.join(tasks)}.log"
      command = _Command(*evaluate, f"--tasks={','.join(tasks)}", log=log)
      commands.append(stack.enter_context(command))
    for command in commands:
      command.wait()
  _run(*evaluate, f"--compare={scratch}")  # all runs are finished; this makes the table
  return comparison.read_results(output)["compared"]


def _print_results(
  workdir: pathlib.Path,
  train_flags: list[str],
  table: dict[str, Any],
  sentences: list[str],
  resumption: Resumption | None,
  seconds: float,
) -> None:
  """Print the results, and commands to continue with."""
  evals = [row for row in read_metrics(workdir) if any(name.startswith("eval/") for name in row)]
  figures = {name.rpartition("/")[2]: value for name, value in evals[-1].items() if name != "step"}
  step = evals[-1]["step"]
  lines = []
  for sentence, completion in zip(_SENTENCES, sentences):
    lines += [f"  {sentence}", f"  -> {completion}"]
  completions = re.sub(r"<extra_id_\d+>", "____", "\n".join(lines))
  python = pathlib.Path(sys.executable)
  if python.is_relative_to(pathlib.Path.cwd()):
    python = python.relative_to(pathlib.Path.cwd())
  continued = [flag for flag in train_flags if not flag.startswith("--config.total_steps")]
  exactness = ""
  if resumption:
    exactness = _paragraph(
      f"The run was killed at step {resumption.killed:,} and resumed from step "
      f"{resumption.resumed:,}. The {resumption.repeated} steps that both processes computed agree "
      "to the last bit."
    )
  outcome = _paragraph(
    f"Validation loss {figures['loss']:.3f} nats a token after {step:,} steps; predicting by token "
    f"frequency alone would cost {figures['unigram_entropy']:.3f} (the unigram entropy of the same "
    f"targets). Of the spans taken out of held-out text, {figures['span_exact_match']:.1%} are "
    "restored exactly; giving the commonest span every time would restore "
    f"{figures['commonest_span']:.1%}."
  )
  gain = _paragraph(
    "The gain of pretraining: the same model, fine-tuned in the same way from fresh weights and "
    "from the checkpoint, in percent of held-out examples."
  )
  predict = [f"--workdir={workdir}", f"--input={workdir}/try_me.txt"]
  commands = {
    "train on": ["train", *continued, f"--config.total_steps={2 * step}"],
    "evaluate": ["evaluate", f"--workdir={workdir}"],
    "fill in": ["predict", *predict, f"--output={workdir}/filled.jsonl"],
  }
  next_lines = []
  for label, (program, *flags) in commands.items():
    words = [f"{python} -m t5x_like.{program}", *map(shlex.quote, flags)]
    next_lines.append(f"{label}:\n{textwrap.indent(_wrap(words), '    ')}")
  print(f"""
=== done in {seconds:.0f} s

{outcome}{exactness}The model's completions:

{completions}

{gain}{_align(comparison.markdown(table))}

report:      {workdir}/report.html
checkpoints: {workdir}/checkpoints

{chr(10).join(next_lines)}
""")
  saved = read_identity(workdir)
  if figures["loss"] >= figures["unigram_entropy"] and saved["total_steps"] >= 200:
    raise UserError(
      f"{workdir}: the validation loss is not below the unigram entropy; this should not happen"
    )


if __name__ == "__main__":
  sys.exit(main())
