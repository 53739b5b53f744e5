"""Store a teacher's likeliest next tokens, for distillation without running the teacher.

Example:
  python -m tools.cache_teacher --workdir=runs/teacher --config=configs/gpt/my_text.py \\
      --k=32 --output=data/taught
  python -m t5x_like.train --config=configs/gpt/my_text.py --workdir=runs/student \\
      '--config.task={"name": "taught", "store": "data/taught"}' \\
      '--config.objective={"name": "cached_distillation"}'

The tool takes the `--config.…` flags of training. The recipe's task makes the examples, with the
recipe's `seed` and `batch_size`. A target takes `8 * k` bytes. The tool prints the remainder, which
is the probability of all tokens but the k likeliest. It runs in one process on the devices of the
teacher's mesh. An interrupted command starts from the beginning.
"""

import sys
from collections.abc import Iterator

from t5x_like import command_line, recipes
from t5x_like.errors import UserError, handle_errors
from t5x_like.files import outputs
from t5x_like.files.paths import check_directory


@handle_errors
def main(argv: list[str] | None = None) -> None:
  parser = command_line.Parser(__doc__, prog="python -m tools.cache_teacher")
  parser.add_argument(
    "--workdir",
    required=True,
    type=check_directory,
    metavar="DIR",
    help="run or model of the teacher",
  )
  parser.add_argument(
    "--config",
    required=True,
    metavar="RECIPE",
    help="recipe of the student, whose task makes the examples",
  )
  parser.add_argument("--output", required=True, metavar="DIR", help="new directory for the stores")
  parser.add_argument("--k", type=int, default=32, help="tokens kept at each target (default: 32)")
  parser.add_argument(
    "--examples", type=int, metavar="N", help="training examples (default: one epoch)"
  )
  args, overrides = parser.parse(argv)
  config = recipes.load(args.config, overrides)
  outputs.check_new(args.output, "--output=")
  for flag in ("k", "examples"):
    value = getattr(args, flag)
    if value is not None and value < 1:
      raise UserError(f"--{flag}={value}: expected at least 1")

  from t5x_like.data import task
  from t5x_like.runtime import process

  process.prepare()
  teacher = Teacher(args.workdir, args.k)
  tasks = {}
  for split in dict.fromkeys((config.train_split, config.eval_split)):
    tasks[split] = task.build(split=split, **{"name": None} | config.task.to_dict())
    teacher.check(tasks[split])
  for split, split_task in tasks.items():
    is_training = split == config.train_split
    count = split_task.num_examples
    if is_training and args.examples:
      count = args.examples
    path = f"{args.output}/{split}"
    remainder = write(path, split, teacher, split_task, config, count, is_training)
    print(
      f"{path}: {count:,} examples; the {args.k} likeliest tokens leave a remainder of "
      f"{remainder:.4f}"
    )


class Teacher:
  """A trained model that returns (ids, log-probabilities) of the k likeliest tokens, [B, T, k].

  Raises:
    UserError: there is no such model, it has fewer tokens, or there are several processes.
  """

  def __init__(self, workdir: str, k: int):
    import jax

    from t5x_like.nn import params
    from t5x_like.objectives._token_distillation import map_token_chunks
    from t5x_like.saved_model import open_saved_model

    if jax.process_count() > 1:
      raise UserError(f"tools.cache_teacher runs on one process, found {jax.process_count()}")
    run = open_saved_model(workdir)
    self.workdir = workdir
    self.run = run
    self.vocabulary = run.vocabulary
    self.step, self._arrays = run.restore(None)
    size = min(run.model.variant.vocab_size, self.vocabulary.size)
    if k > size:
      raise UserError(f"--k={k}: expected at most {size}, the tokens of {workdir}")

    def likeliest(arrays, batch):
      with run.rules.activate():
        logits = params.with_arrays(run.model, arrays).outputs(batch)["logits"]
        log_p, ids = map_token_chunks(
          lambda x: jax.lax.top_k(jax.nn.log_softmax(x[..., :size]), k), (logits,)
        )
      return ids, log_p

    self._likeliest = jax.jit(likeliest)
    self.k = k

  def check(self, built) -> None:
    """Refuse a task whose vocabulary or features do not fit the teacher."""
    if self.vocabulary.fingerprint != built.vocabulary.fingerprint:
      raise UserError(
        f"--workdir={self.workdir}: was trained with another vocabulary than the "
        f"task {built.name} has"
      )
    for name in (*self.run.model.REQUIRED_FEATURES, "decoder_target_tokens"):
      if name not in built.features or len(built.features[name].shape) != 1:
        raise UserError(
          f"--workdir={self.workdir}: needs rows of the feature {name!r}, which task {built.name} "
          f"does not make (it makes {', '.join(built.features)}); choose another task"
        )

  def __call__(self, batch):
    import jax
    import numpy as np

    ways = self.run.rules.ways("batch")
    rows = len(next(iter(batch.values())))
    padded = {}
    for name, x in batch.items():
      padded[name] = np.pad(x, [(0, -rows % ways)] + [(0, 0)] * (x.ndim - 1))
    arrays = self._likeliest(self._arrays, jax.device_put(padded, self.run.rules.batch()))
    return [np.asarray(x)[:rows] for x in arrays]


def write(
  path: str, split: str, teacher: Teacher, task, config, count: int, is_training: bool
) -> float:
  """Write the store of a split; return the mean remainder of its weighted tokens.

  The remainder is the probability of all tokens that are not stored.

  Args:
    path: directory of the new store.
    split: name of the split.
    teacher: model whose likeliest tokens are stored.
    task: task that makes the examples.
    config: config of the run that will read the store.
    count: number of examples.
    is_training: read the examples in the order of training; otherwise in the order of evaluation.
  """
  import numpy as np

  from t5x_like.data.tasks import taught as tasks
  from t5x_like.files.paths import as_path
  from t5x_like.store import manifest, writer

  (T,) = task.features["decoder_target_tokens"].shape
  teacher_features = tasks.teacher_features(T, teacher.k)
  features = task.features | teacher_features
  arrays = [manifest.Array(name, feature.dtype) for name, feature in features.items()]
  values_per_row = sum(int(np.prod(feature.shape)) for feature in features.values())
  incomplete = as_path(f"{path}.incomplete")
  incomplete.rmtree(missing_ok=True)
  shards = []
  pending: list[dict[str, np.ndarray]] = []
  pending_rows = 0
  written_rows = 0
  remainder = 0.0
  total_weight = 0.0
  for batch in _batches(task, config, count, is_training):
    batch |= dict(zip(teacher_features, teacher(batch), strict=True))
    weights = batch["decoder_loss_weights"]
    stored_probability = np.exp(batch["teacher_log_probabilities"]).sum(-1)
    remainder += float((weights * np.maximum(1 - stored_probability, 0)).sum())
    total_weight += float(weights.sum())
    pending.append(batch)
    pending_rows += len(weights)
    is_last = written_rows + pending_rows == count
    if is_last or values_per_row * pending_rows >= writer.SHARD_VALUES:
      values = _join_batches(pending)
      shards.append(writer.write_shard(incomplete, f"{len(shards):08d}", arrays, values))
      written_rows += pending_rows
      pending = []
      pending_rows = 0
  layouts = {name: [list(feature.shape), feature.dtype] for name, feature in features.items()}
  metadata = writer.build_metadata(
    shards,
    name=task.name,
    split=split,
    arrays=arrays,
    facts={"vocabulary": manifest.vocabulary_facts(task.vocabulary), tasks.FACT: layouts},
    skipped={},
    source={
      "teacher": teacher.workdir,
      "step": teacher.step,
      "task": task.fingerprint,
      "seed": config.seed,
    },
  )
  writer.publish(incomplete, path, metadata, task.vocabulary)
  return remainder / max(total_weight, 1.0)


def _batches(task, config, count: int, is_training: bool) -> Iterator[dict]:
  """Return the batches of the first `count` examples; the last one is cut to that number."""
  import numpy as np

  from t5x_like.data import loader

  if is_training:
    batches = loader.train_batches(task, batch_size=config.batch_size, seed=config.seed)
  else:
    batches = loader.eval_batches(task, batch_size=config.batch_size)
  remaining = count
  for batch in batches:
    rows = {name: np.asarray(batch[name])[:remaining] for name in task.features}
    yield rows
    remaining -= len(rows["decoder_loss_weights"])
    if remaining == 0:
      break


def _join_batches(batches: list[dict]) -> dict[str, tuple]:
  """Return the flat values and the row lengths of each feature, as a shard stores them."""
  import numpy as np

  values = {}
  for name in batches[0]:
    rows = np.concatenate([batch[name] for batch in batches])
    values[name] = rows.reshape(-1), np.full(len(rows), rows[0].size, np.int64)
  return values


if __name__ == "__main__":
  sys.exit(main())
