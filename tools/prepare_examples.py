"""Prepare the examples of a recipe's task, which training otherwise does when it starts.

Example:
  python -m tools.prepare_examples --config=configs/t5/finetune.py \\
      --config.task.source=tsv:train=a.tsv,validation=b.tsv

Takes the `--config.…` flags of training, builds the task for the training and the evaluation split,
and prints how many examples there are, how many rows were skipped and why, and how full packed rows
are.
"""

import sys

from t5x_like import command_line, recipes
from t5x_like.errors import handle_errors


@handle_errors
def main(argv: list[str] | None = None) -> None:
  parser = command_line.Parser(__doc__, prog="python -m tools.prepare_examples")
  parser.add_argument(
    "--config", required=True, metavar="RECIPE", help="such as configs/t5/finetune.py"
  )
  args, overrides = parser.parse(argv)
  config = recipes.load(args.config, overrides)
  from t5x_like.data import task

  for split in dict.fromkeys((config.train_split, config.eval_split)):
    built = task.build(split=split, **{"name": None} | config.task.to_dict())
    print(
      f"{built.name}, split {split}: {built.num_examples:,} rows an epoch; fingerprint "
      f"{built.fingerprint[:12]}"
    )


if __name__ == "__main__":
  sys.exit(main())
