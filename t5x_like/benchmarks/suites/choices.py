"""Multiple choice for encoders: RACE, SWAG and CODAH.

See Lai et al. 2017, Zellers et al. 2018 and Chen et al. 2019.
"""

from t5x_like.benchmarks.suites import SPLITS, Benchmark, Files, Suite, multiple_choice

_NUMBERS = ("0", "1", "2", "3")  # of the options
_SWAG = {"train": ["data/train.csv"], "validation": ["data/val.csv"], "test": ["data/test.csv"]}
# The files of a split are alternatives.
_CODAH = {
  "train": ["CODAH/train.tsv", "full_data.tsv"],
  "validation": ["CODAH/dev.tsv"],
  "test": ["CODAH/test.tsv"],
}
_ANSWERS = tuple(f"answer{number}" for number in _NUMBERS)


def _race(school: str, examples: int) -> Benchmark:
  """Return the questions of middle or high schools (Lai et al. 2017)."""
  splits = {split: [f"{name}/{school}/*.txt"] for split, name in SPLITS.items()}
  return multiple_choice(
    None,  # no source but the files
    examples,
    files=Files(f"race_{school}", "race", splits),
    text="{article}",
    options="options",
    option="{question}",
    # An option takes the place of "_" in a question, and follows a question without "_", as in the
    # code of RoBERTa and ALBERT.
    placeholder="_",
    choices=4,
    label_field="answer",
    labels=["A", "B", "C", "D"],
    ids=("example_id",),
    length=512,
    evaluated={"dev": "validation", "test": "test"},
  )


SUITE = Suite(
  {
    "race_middle": _race("middle", 25_421),
    "race_high": _race("high", 62_445),
    "swag": multiple_choice(
      None,
      73_546,
      files=Files("swag", "csv", _SWAG),
      text="{sent1}",
      options=[f"{{sent2}} {{ending{number}}}" for number in _NUMBERS],
      choices=4,
      labels=list(_NUMBERS),
      ids=("video-id", "fold-ind"),
    ),
    "codah": multiple_choice(
      None,
      1_665,
      files=Files("codah", "tsv", _CODAH, header=("category", "prompt", *_ANSWERS, "label")),
      text="{prompt}",
      options=[f"{{{answer}}}" for answer in _ANSWERS],
      choices=4,
    ),
  }
)
