"""Pretrain, evaluate and fine-tune a small T5, and write its report (`make quickstart`).

Each stage is an ordinary command of this project, which is printed before it runs. A stage whose
result exists is skipped. The last two stages fine-tune the model on four tasks made of the same
corpus, from fresh weights and from the checkpoint. At the end the program prints the scores of both
and commands to continue with.
"""

import argparse
import json
import pathlib
import re
import shlex
import subprocess
import sys
import time
from typing import Any

from t5x_like import recipes
from t5x_like.benchmarks import comparison
from t5x_like.errors import UserError, handle_errors
from t5x_like.files.paths import check_directory
from t5x_like.report.writer import read_metrics

RECIPE = "configs/t5/quickstart.py"
# Fine-tuning steps of each task, with the recipe's steps of pretraining. With more steps and labels
# pretraining helps less.
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
  vocabulary = data / "vocabulary"
  store = data / "docstrings"
  source = ["--source=docstrings", f"--data_dir={data / 'tfds'}"]
  recipe = recipes.load(RECIPE)
  size = ["--kind=unigram", f"--size={recipe.model.vocab_size}", f"--output={vocabulary}"]
  _run(
    f"1/6 the docstrings of the installed packages, and {recipe.model.vocab_size:,} SentencePiece "
    "ids",
    f"{__package__}.train_vocabulary",
    *source,
    *size,
  )
  _run(
    "2/6 tokens",
    f"{__package__}.prepare_data",
    *source,
    f"--vocabulary={vocabulary}",
    f"--output={store}",
  )
  train = [f"--config={RECIPE}", f"--workdir={args.workdir}"]
  if str(store) != "data/docstrings":
    train.append(f"--config.task.store={store}")
  if args.steps:
    train.append(f"--config.total_steps={args.steps}")
  _run("3/6 pretraining, checkpoints, evaluation, report", "t5x_like.train", *train)
  sentences = _complete_sentences(args.workdir)
  table = _fine_tune(args.workdir, data, args.steps or recipe.total_steps, recipe.total_steps)
  _print_results(args.workdir, train, table, sentences, time.monotonic() - start)


def _run(title: str, module: str, *arguments: str) -> None:
  print(f"\n=== {title}\n$ python {shlex.join(['-m', module, *arguments])}", flush=True)
  start = time.monotonic()
  code = subprocess.run([sys.executable, "-m", module, *arguments]).returncode
  if code:
    raise UserError(f"python -m {module} ended with exit code {code}; see its output above")
  print(f"    {time.monotonic() - start:.0f} s", flush=True)


def _complete_sentences(workdir: str) -> list[str]:
  """Return sentences with gaps that the pretrained model filled."""
  sample = pathlib.Path(workdir) / "try_me.txt"
  filled = pathlib.Path(workdir) / "filled.jsonl"
  sample.write_text("".join(f"{sentence}\n" for sentence in _SENTENCES), encoding="utf-8")
  flags = [f"--workdir={workdir}", f"--input={sample}", f"--output={filled}"]
  _run("4/6 sentences with gaps, filled by the model", "t5x_like.predict", *flags)
  return [json.loads(line)["filled"] for line in filled.read_text(encoding="utf-8").splitlines()]


def _fine_tune(
  workdir: str, data: pathlib.Path, pretraining: int, recipe_steps: int
) -> dict[str, Any]:
  """Compare the model with and without pretraining; return the result of `comparison.compared`."""
  steps = max(2, _TUNING_STEPS * pretraining // recipe_steps)
  values = _TUNING | {
    "schedule.warmup_steps": steps // 10,
    "task.cache": data / "prepared",
    "total_steps": steps,
    "eval_every": steps,
    "checkpoint.every": steps,
  }
  suite = [f"--workdir={workdir}", "--suite=docstrings", f"--data_dir={data / 'tfds'}"]
  suite += [f"--config.{key}={value}" for key, value in values.items()]
  output = f"{workdir}/suites/docstrings-{pretraining}"
  scratch = f"{output}/from_scratch"
  _run(
    f"5/6 four tasks, {steps} steps each from scratch",
    "t5x_like.evaluate",
    *suite,
    "--from_scratch",
    f"--output={scratch}",
  )
  _run(
    "6/6 the same from the checkpoint",
    "t5x_like.evaluate",
    *suite,
    f"--output={output}",
    f"--compare={scratch}",
  )
  return comparison.read_results(output)["compared"]


def _print_results(
  workdir: str, train: list[str], table: dict[str, Any], sentences: list[str], seconds: float
) -> None:
  """Print the results, and commands to continue with."""
  evals = [row for row in read_metrics(workdir) if any(name.startswith("eval/") for name in row)]
  figures = {name.rpartition("/")[2]: value for name, value in evals[-1].items() if name != "step"}
  step = evals[-1]["step"]
  sample = pathlib.Path(workdir) / "try_me.txt"
  lines = []
  for sentence, completion in zip(_SENTENCES, sentences):
    lines += [f"      {sentence}", f"      -> {completion}"]
  completions = re.sub(r"<extra_id_\d+>", "____", "\n".join(lines))
  python = pathlib.Path(sys.executable)
  if python.is_relative_to(pathlib.Path.cwd()):
    python = python.relative_to(pathlib.Path.cwd())
  train_flags = [flag for flag in train if not flag.startswith("--config.total_steps")]
  print(f"""
=== done in {seconds:.0f} s
    validation loss {figures["loss"]:.3f} nats a token after {step} steps; predicting by token
    frequency alone would cost {figures["unigram_entropy"]:.3f} (the unigram entropy of the same
    targets). Of the spans taken out of held-out text, {figures["span_exact_match"]:.1%} are
    restored exactly; giving the commonest span every time would restore
    {figures["commonest_span"]:.1%}.

    The model's completions:

{completions}

    The gain of pretraining: the same model, fine-tuned in the same way from fresh weights and from
    the checkpoint, in percent of held-out examples.

{comparison.markdown(table)}
    report:      {workdir}/report.html
    checkpoints: {workdir}/checkpoints

    train on:    {python} -m t5x_like.train {shlex.join(train_flags)} \\
                   --config.total_steps={2 * step}
    evaluate:    {python} -m t5x_like.evaluate --workdir={workdir}
    fill in:     {python} -m t5x_like.predict --workdir={workdir} --input={sample} \\
                   --output={workdir}/filled.jsonl
""")
  from t5x_like.saved_model.workdir import read_identity

  saved = read_identity(workdir)
  if figures["loss"] >= figures["unigram_entropy"] and saved["total_steps"] >= 200:
    raise UserError(
      f"{workdir}: the validation loss is not below the unigram entropy; this should not happen"
    )


if __name__ == "__main__":
  sys.exit(main())
