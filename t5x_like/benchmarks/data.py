"""Whether the data of a suite's task are prepared, with the splits that it uses."""

from t5x_like.parallel import distributed


class Unavailable(Exception):
  """The data of a task, named `dataset`, are not there."""

  def __init__(self, dataset: str, why: str):
    super().__init__(f"{dataset} {why}")
    self.dataset = dataset


def check(config) -> None:
  """Raises Unavailable unless the datasets of a config are prepared, with their splits; a suite downloads nothing."""
  from t5x_like.corpora.sources import parted, tfds

  sources = [config.task.source, *(values.get("task", {}).get("source", "") for values in config.evals.values())]
  for source in dict.fromkeys(source for source in sources if source.startswith("tfds:")):
    name, data_dir = source.removeprefix("tfds:"), config.task.get("data_dir")
    if not distributed.from_first(lambda name=name, data_dir=data_dir: tfds.is_prepared(name, data_dir)):
      raise Unavailable(
        name,
        f"is not in {data_dir or 'the data_dir of TFDS'}; make it with python -m tools.prepare_dataset {name}"
        " --from_files=DIR",
      )
  if config.task.source.startswith("tfds:"):
    found = splits(config)
    own = [values["split"] for values in config.evals.values() if "task" not in values]
    used = [parted(split)[0] for split in (config.train_split, *own)]
    if lacking := [split for split in used if split not in found]:
      name = config.task.source.removeprefix("tfds:")
      raise Unavailable(name, f"has no split {lacking[0]!r}, only {', '.join(found)}; make it with all of its files")


def splits(config) -> tuple[str, ...]:
  from t5x_like.corpora.sources import open_source

  return open_source(config.task.source, data_dir=config.task.get("data_dir")).splits
