"""From nothing to a trained, evaluated and reported T5: `make quickstart`.

Each stage is an ordinary command of this project, printed before it runs; a stage whose result exists is skipped. At
the end it prints commands to continue with.
"""

import argparse
import pathlib
import shlex
import subprocess
import sys
import time

from t5x_like.errors import UserError, door
from t5x_like.training import workdir as workdirs
from t5x_like.training.writer import read_metrics

RECIPE = "configs/t5/quickstart.py"


@door
def main(argv: list[str] | None = None) -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data_dir", default="data", help="directory of corpus and token store (default: %(default)s)")
  parser.add_argument("--workdir", default="runs/quickstart", help="the run's directory (default: %(default)s)")
  parser.add_argument("--steps", type=int, help="train for fewer or more steps than the recipe says")
  args = parser.parse_args(argv)
  start = time.monotonic()
  data = pathlib.Path(args.data_dir)
  vocabulary, store = data / "vocabulary", data / "docstrings"
  source = ["--source=docstrings", f"--data_dir={data / 'tfds'}"]
  size = ["--size=8192", f"--output={vocabulary}"]
  _run(
    "1/3 the docstrings of the installed packages, and 8,192 SentencePiece ids",
    "tools.train_vocabulary",
    *source,
    *size,
  )
  _run("2/3 tokens", "tools.prepare_data", *source, f"--vocabulary={vocabulary}", f"--output={store}")
  train = [f"--config={RECIPE}", f"--workdir={args.workdir}"]
  if str(store) != "data/docstrings":
    train.append(f"--config.task.store={store}")
  if args.steps:
    train.append(f"--config.total_steps={args.steps}")
  _run("3/3 training, checkpoints, evaluation, report", "t5x_like.train", *train)
  _closing(args.workdir, train, time.monotonic() - start)


def _run(title: str, module: str, *arguments: str) -> None:
  print(f"\n=== {title}\n$ python {shlex.join(['-m', module, *arguments])}", flush=True)
  start = time.monotonic()
  code = subprocess.run([sys.executable, "-m", module, *arguments]).returncode
  if code:
    raise UserError(f"python -m {module} ended with exit code {code}; see its output above")
  print(f"    {time.monotonic() - start:.0f} s", flush=True)


def _closing(workdir: str, train: list[str], seconds: float) -> None:
  """Prints the results, and commands to continue with."""
  evals = [row for row in read_metrics(workdir) if any(name.startswith("eval/") for name in row)]
  figures = {name.rpartition("/")[2]: value for name, value in evals[-1].items() if name != "step"}
  step = evals[-1]["step"]
  sample = pathlib.Path(workdir) / "try_me.txt"
  sample.write_text(
    "Returns the <extra_id_0> of the array along the given <extra_id_1>.\n"
    "Raises an <extra_id_0> if the file does not exist.\n",
    encoding="utf-8",
  )
  python = pathlib.Path(sys.executable)
  python = python.relative_to(pathlib.Path.cwd()) if python.is_relative_to(pathlib.Path.cwd()) else python
  more = [word for word in train if not word.startswith("--config.total_steps")]
  print(f"""
=== done in {seconds:.0f} s
    validation loss {figures["loss"]:.3f} nats a token after {step} steps; predicting by token frequency alone would
    cost {figures["unigram_entropy"]:.3f} (the unigram entropy of the same targets)
    report:      {workdir}/report.html
    checkpoints: {workdir}/checkpoints

    train on:    {python} -m t5x_like.train {shlex.join(more)} --config.total_steps={2 * step}
    evaluate:    {python} -m t5x_like.evaluate --workdir={workdir}
    fill in:     {python} -m t5x_like.predict --workdir={workdir} --input={sample} --output={workdir}/filled.jsonl
""")
  saved = workdirs.read(workdir)
  if figures["loss"] >= figures["unigram_entropy"] and saved["total_steps"] >= 200:
    raise UserError(f"{workdir}: the validation loss is not below the unigram entropy; this should not happen")


if __name__ == "__main__":
  sys.exit(main())
