"""Stores a teacher's likeliest next tokens beside the examples of a recipe, for distillation
without the teacher.

Example:
  python -m tools.cache_teacher --workdir=runs/teacher --config=configs/gpt/my_text.py \\
      --k=32 --output=data/taught
  python -m t5x_like.train --config=configs/gpt/my_text.py --workdir=runs/student \\
    '--config.task={"name": "taught", "store": "data/taught"}' '--config.objective={"name":
    "cached_distillation"}'

Takes the `--config.…` flags of training, whose task makes the examples; `seed` and `batch_size` are
the recipe's. Each token takes 8 k bytes. The report tells the probability that the k tokens leave
to others, the remainder. Runs on one process, with the devices of the teacher's mesh; an
interrupted command begins anew.
"""

import sys

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
    help="the teacher's run or model",
  )
  parser.add_argument(
    "--config", required=True, metavar="RECIPE", help="the student's, whose task makes the examples"
  )
  parser.add_argument(
    "--output", required=True, metavar="DIR", help="a new directory for the stores"
  )
  parser.add_argument("--k", type=int, default=32, help="tokens kept at each target (default: 32)")
  parser.add_argument("--examples", type=int, metavar="N", help="of training (default: one epoch)")
  args, overrides = parser.parse(argv)
  config = recipes.load(args.config, overrides)
  outputs.check_new(args.output, "--output=")
  for flag in ("k", "examples"):
    if (found := getattr(args, flag)) is not None and found < 1:
      raise UserError(f"--{flag}={found}: expected at least 1")

  from t5x_like.data import task
  from t5x_like.runtime import process

  process.prepare()
  teacher = Teacher(args.workdir, args.k)
  built = {
    split: task.build(split=split, **{"name": None} | config.task.to_dict())
    for split in dict.fromkeys((config.train_split, config.eval_split))
  }
  for one in built.values():
    teacher.check(one)
  for split, one in built.items():
    count = (args.examples or one.num_examples) if split == config.train_split else one.num_examples
    rest = write(
      f"{args.output}/{split}", split, teacher, one, config, count, split == config.train_split
    )
    print(
      f"{args.output}/{split}: {count:,} examples; the {args.k} likeliest tokens leave a "
      f"remainder of {rest:.4f}"
    )


class Teacher:
  """A trained model, called as `teacher(batch) -> (ids, log-probabilities)` of the k likeliest
  tokens, [B, T, k].

  Raises:
    UserError: there is no such model, it has fewer tokens, or there are several processes.
  """

  def __init__(self, workdir: str, k: int):
    import jax

    from t5x_like.nn import params
    from t5x_like.objectives._token_distillation import map_token_chunks
    from t5x_like.training import open_with_recipe, saved_model

    if jax.process_count() > 1:
      raise UserError(f"tools.cache_teacher runs on one process, found {jax.process_count()}")
    run = saved_model.open_saved_model(workdir)
    self.workdir, self.run, self.vocabulary = workdir, run, open_with_recipe.load_vocabulary(run)
    self.step, self._arrays = run.restore(None)
    if k > (size := min(run.model.variant.vocab_size, self.vocabulary.size)):
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
    """Check that the teacher reads a task's examples; raise UserError."""
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
    padded = {
      name: np.pad(x, [(0, -rows % ways)] + [(0, 0)] * (x.ndim - 1)) for name, x in batch.items()
    }
    found = self._likeliest(self._arrays, jax.device_put(padded, self.run.rules.batch()))
    return [np.asarray(x)[:rows] for x in found]


def write(
  path: str, split: str, teacher: Teacher, built, config, count: int, training: bool
) -> float:
  """Write the store of a split; return the mean remainder of its weighted tokens.

  Args:
    count: the number of its examples.
    training: whether they are drawn in the order of training, else in the order of evaluation.
  """
  import numpy as np

  from t5x_like.data import loader
  from t5x_like.data.tasks import taught as tasks
  from t5x_like.files.paths import as_path
  from t5x_like.store import manifest, writer

  (T,) = built.features["decoder_target_tokens"].shape
  taught = tasks.taught(T, teacher.k)
  features = built.features | taught
  arrays = [manifest.Array(name, one.dtype) for name, one in features.items()]
  values = sum(int(np.prod(one.shape)) for one in features.values())
  batches = (
    loader.train_batches(built, batch_size=config.batch_size, seed=config.seed)
    if training
    else None
  )
  batches = batches or loader.eval_batches(built, batch_size=config.batch_size)
  work = as_path(f"{path}.incomplete")
  work.rmtree(missing_ok=True)
  shards = []
  held = []
  left = count
  rest = 0.0
  weight = 0.0
  for batch in batches:
    batch = {name: np.asarray(batch[name])[:left] for name in built.features}
    batch |= dict(zip(taught, teacher(batch), strict=True))
    weights = batch["decoder_loss_weights"]
    rest += float(
      (weights * np.maximum(1 - np.exp(batch["teacher_log_probabilities"]).sum(-1), 0)).sum()
    )
    weight = weight + float(weights.sum())
    left = left - len(weights)
    held = [*held, batch]
    if left == 0 or values * sum(len(one["teacher_tokens"]) for one in held) >= writer.SHARD_VALUES:
      rows = {name: np.concatenate([one[name] for one in held]) for name in features}
      items = {n: (x.reshape(-1), np.full(len(x), x[0].size, np.int64)) for n, x in rows.items()}
      shards.append(writer.write_shard(work, f"{len(shards):08d}", arrays, items))
      held = []
    if left == 0:
      break
  facts = {"vocabulary": manifest.vocabulary_facts(built.vocabulary)}
  facts |= {tasks.FACT: {name: [list(one.shape), one.dtype] for name, one in features.items()}}
  source = {
    "teacher": teacher.workdir,
    "step": teacher.step,
    "task": built.fingerprint,
    "seed": config.seed,
  }
  about = dict(name=built.name, split=split, arrays=arrays, facts=facts, skipped={}, source=source)
  writer.publish(work, path, writer.build_metadata(shards, **about), built.vocabulary)
  return rest / max(weight, 1.0)


if __name__ == "__main__":
  sys.exit(main())
