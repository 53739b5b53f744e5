"""Every benchmark by name: functions whose arguments are the benchmark's own flags. One file a kind, one entry each."""

from tools.score.benchmarks import choices, generation, glue, questions, superglue, tags

BENCHMARKS = {
  name: make
  for part in (glue, superglue, questions, choices, tags, generation)
  for name, make in part.BENCHMARKS.items()
}
