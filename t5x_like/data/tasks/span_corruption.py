"""T5's pretraining task: span corruption of consecutive windows of a token store, as encoder-decoder features.

Example i is the corrupted window i of W tokens, W = 568 for 512 inputs; the tokens after the last whole window are not
used. The noise is drawn afresh for every (seed, epoch, example).
"""

from t5x_like.data.store.reader import Verify
from t5x_like.data.store.windows import open_tokens
from t5x_like.data.task import Task
from t5x_like.data.tasks._span_corruption import over


def task(
  *,
  store: str,
  split: str,
  inputs_length: int = 512,
  targets_length: int | None = None,
  noise_density: float = 0.15,
  mean_noise_span_length: float = 3.0,
  random_roll: bool = False,
  prefix: str = "",
  label: str | None = None,
  verify: Verify = "auto",
) -> Task:
  """Makes the task.

  Args:
    store: the directory or address that holds a token store per split (the `--output` of tools.prepare_data), or
      `builtin`, see `data/store/builtin.py`.
    split: which of them.
    inputs_length: encoder length, EOS included; the raw window follows from it.
    targets_length: decoder length, EOS included; None derives it (114 for 512).
    noise_density: fraction of tokens that is noise.
    mean_noise_span_length: mean noise tokens per span.
    random_roll: noise may begin or end anywhere in the window, see `preprocessors/span_corruption.py`.
    prefix: text before the inputs, such as the mode tokens of UL2; its tokens count as inputs.
    label: the name in metrics; by default `<corpus>_span_corruption`.
    verify: what opening the store checks: `size`, `full` (all checksums) or `auto`, see `TokenStore.open`.

  Raises:
    UserError: the store cannot be used, is shorter than one window, or its vocabulary lacks sentinels; impossible
      lengths or densities.
  """
  return over(
    open_tokens(store, split, verify),
    inputs_length=inputs_length,
    targets_length=targets_length,
    noise_density=noise_density,
    mean_noise_span_length=mean_noise_span_length,
    random_roll=random_roll,
    prefix=prefix,
    label=label,
  )
