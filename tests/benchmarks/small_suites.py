"""A small encoder, and CoLA's files with few sentences to fine-tune it on."""

import pathlib

import tests.recipes.nano_encoder  # noqa: F401 -- registers the variant of the recipe
from t5x_like import train
from tests.runs import hide_other_devices

ENCODER = "tests/recipes/nano_encoder.py"
SHORT_RUN = (
  "--config.total_steps=2",
  "--config.eval_every=2",
  "--config.checkpoint.every=2",
  "--config.evals={}",
)
SHORT_TUNING = ("--config.total_steps=2", "--config.batch_size=8", "--config.task.length=64")


def train_encoder(workdir: pathlib.Path, *flags: str, length: int = 64) -> None:
  """Train a BERT with so many positions for two steps."""
  position = f'--config.model.design.position={{"name": "learned", "length": {length}}}'
  command = [f"--config={ENCODER}", f"--workdir={workdir}", *SHORT_RUN, position, *flags]
  with hide_other_devices():
    assert train.main(command) == 0


def write_cola(folder: pathlib.Path, sentences: list[str], test_sentences=()) -> None:
  """Write sentences, whose labels alternate, as CoLA's train and dev set, and its test set."""
  (folder / "CoLA").mkdir(parents=True, exist_ok=True)
  lines = [f"gj04\t{n % 2}\t\t{sentence}\n" for n, sentence in enumerate(sentences)]
  for split in ("train", "dev"):
    (folder / "CoLA" / f"{split}.tsv").write_text("".join(lines))
  if test_sentences:
    lines = [f"{n}\t{sentence}\n" for n, sentence in enumerate(test_sentences)]
    (folder / "CoLA" / "test.tsv").write_text("index\tsentence\n" + "".join(lines))
