"""Multiple choice: RACE (Lai et al. 2017), SWAG (Zellers et al. 2018) and CODAH (Chen et al. 2019), for encoders."""

from t5x_like.benchmarks.suites import Suite, chosen

_FOUR = ("0", "1", "2", "3")


def _race(part: str, examples: int):
  return chosen(
    f"tfds:race_questions/{part}",
    examples,
    text="{article}",
    options="options",
    option="{question} {option}",
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
    "swag": chosen(
      "tfds:swag/regular",
      73_546,
      text="{sent1}",
      options=[f"{{sent2}} {{ending{number}}}" for number in _FOUR],
      choices=4,
      labels=list(_FOUR),
      ids=("video-id", "fold-ind"),
    ),
    "codah": chosen(
      "tfds:codah",
      1_665,
      text="{question_propmt}",  # as the hub spells it
      options="candidate_answers",
      choices=4,
      label_field="correct_answer_idx",
      ids=("id",),
    ),
  }
)
