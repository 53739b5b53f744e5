"""Clean and tokenise a corpus into a token store per split, which training reads.

Examples:
  python -m tools.prepare_data --source='jsonl:corpus/*.jsonl.gz' --vocabulary=vocabulary \\
      --output=data/corpus
  python -m tools.prepare_data --source='jsonl:gs://b/c4-*.gz' --vocabulary=gs://b/vocabulary \\
    --output=gs://b/stores/c4 --clean=c4,exact --engine=beam --runner=DataflowRunner --project=p \\
    --region=r --temp_location=gs://b/tmp

The store is byte for byte the same for all engines and numbers of workers. After an interruption
repeat the command: it keeps finished stores and finished shards with correct checksums, and refuses
a store that was made from other inputs. With --engine=beam, flags that are not listed here are
options of the Beam pipeline.
"""

import argparse
import dataclasses
import functools
import hashlib
import json
import os
import sys
from typing import Any

from t5x_like import command_line, slots, trust, vocabularies
from t5x_like.corpora import cleaning, engines, held_out, lost_characters, preparing, sources
from t5x_like.corpora.documents import Documents
from t5x_like.corpora.held_out import SplitPart
from t5x_like.corpora.job import Job, describe_skipped
from t5x_like.corpora.tokens import PART_BYTES, TokenStoreKind, summarize_facts
from t5x_like.errors import (
  DamageError,
  TransientError,
  UserError,
  handle_errors,
  one_line,
  unreadable_file_error,
)
from t5x_like.files import file_names
from t5x_like.files.paths import as_path, check_directory, is_remote
from t5x_like.store.tokens import TokenStore
from t5x_like.store.writer import SHARD_VALUES


def _plan(documents: Documents, pairs: list[str], fraction: float) -> dict[str, SplitPart]:
  """Return the part of the source of each split to make.

  Raises:
    UserError: a pair OUTPUT=SOURCE is malformed or names a split twice.
  """
  if not pairs:
    return held_out.plan_parts(documents, fraction)
  plan = {}
  for pair in pairs:
    output, _, source_split = pair.partition("=")
    if not output.replace("_", "").isalnum() or output in plan:
      raise UserError(
        f"--split={pair}: expected OUTPUT=SOURCE with a new name of letters, digits "
        "and _ for OUTPUT"
      )
    split = source_split or output
    sources.check_split(documents.source, split)
    for other_output, part in plan.items():
      if part.split == split:
        raise UserError(
          f"--split={pair}: found the split {split!r} in {other_output!r} already, expected its "
          "documents in one of them; without --split, --validation_fraction divides train"
        )
    plan[output] = SplitPart(split)
  return plan


def _exists(path: str, vocabulary: vocabularies.Vocabulary, expected: dict[str, Any]) -> bool:
  """Return whether the store exists; raise UserError if it was made from other inputs."""
  if not (as_path(path) / "manifest.json").exists() and (
    is_remote(path) or not os.path.exists(path)
  ):
    return False
  store = TokenStore.open(path, verify="size")
  manifest = store.manifest
  recorded = {
    **manifest.source,
    "documents": summarize_facts(manifest.source.get("documents")),
    "vocabulary": manifest.facts["vocabulary"]["fingerprint"],
    "name": manifest.name,
    "append_eos": store.append_eos,
  }
  expected = {**expected, "vocabulary": vocabulary.fingerprint}
  for key, value in expected.items():
    if recorded.get(key) != value:
      raise UserError(
        f"{path}: exists and was made with {key} {_short(recorded.get(key))}, but now it is "
        f"{_short(value)}: remove it or choose another --output"
      )
  return True


def _warn_of_changes(source: sources.Source, split: str, path: str) -> None:
  """Warn if files of the source were modified after the store was made."""
  if is_remote(path):
    return
  store_time = os.stat(os.path.join(path, "manifest.json")).st_mtime_ns
  times = [time for time in source.modification_times(split) if time is not None]
  count = sum(time > store_time for time in times)
  if count:
    print(
      f"{path}: warning: {count} of the source's files were written to since, at the same size: "
      f"if their text has changed, remove {path} to prepare it again",
      flush=True,
    )


def _check_reached(output: str) -> None:
  """Raise UserError if the bucket of the output cannot be reached."""
  try:
    as_path(output).exists()
  except UserError as error:
    raise UserError(f"--output={error}") from error
  except (TransientError, DamageError):
    raise
  except Exception as error:  # each scheme's library raises its own types
    raise UserError(
      f"--output={output}: cannot be reached ({type(error).__name__}: {one_line(error)}); "
      "expected a local directory or a gs://, s3:// or fsspec address that this machine may write "
      "to"
    ) from error


def _short(value: Any) -> str:
  text = repr(value)
  if len(text) <= 120:
    return text
  return f"{text[:100]}... (sha256 {hashlib.sha256(text.encode()).hexdigest()[:12]})"


def _parser() -> argparse.ArgumentParser:
  parser = command_line.Parser(__doc__, opens_runs=False, prog="python -m tools.prepare_data")
  parser.add_argument(
    "--source",
    required=True,
    help=f"source of the documents, FORMAT:REST; formats: {', '.join(sources.formats())} "
    "(t5x_like/corpora/sources)",
  )
  parser.add_argument(
    "--vocabulary", required=True, help="vocabulary directory, a SentencePiece .model, or bytes"
  )
  parser.add_argument(
    "--split_special_tokens",
    action="store_true",
    help="encode text such as </s> as ordinary text, and write the changed tokenizer to "
    "OUTPUT/vocabulary (default: as its special piece, as transformers does)",
  )
  parser.add_argument(
    "--output",
    required=True,
    type=functools.partial(check_directory, flag="--output"),
    help="new directory, with a token store for each split",
  )
  parser.add_argument(
    "--split",
    action="append",
    default=[],
    metavar="OUTPUT=SOURCE",
    help="split to make from a split of the source; repeatable (default: every split)",
  )
  parser.add_argument(
    "--validation_fraction",
    type=float,
    default=0.01,
    help="fraction of documents held out of train by a hash of their text if the source has no "
    "validation split and --split is not given; 0 holds out none (default: %(default)s)",
  )
  parser.add_argument("--name", help="name of the corpus in metrics (default: the source's)")
  parser.add_argument(
    "--append_eos", action="store_true", help="end documents with EOS (T5 joins them without)"
  )
  parser.add_argument(
    "--text_field", default="text", help="key, feature or column of the text (default: text)"
  )
  parser.add_argument("--data_dir", help="directory of prepared TensorFlow datasets")
  parser.add_argument(
    "--clean",
    default="",
    metavar="STEPS",
    help=f"steps of {', '.join(cleaning.names())}, separated by commas: page filters, exact and "
    "near duplicates, repeated three-sentence spans (t5x_like/corpora/cleaning; default: none)",
  )
  parser.add_argument(
    "--min_words", type=int, default=5, help="fewest words in a line, for c4 (default: %(default)s)"
  )
  parser.add_argument(
    "--min_sentences",
    type=int,
    default=3,
    help="fewest sentences in a page, for c4 (default: %(default)s)",
  )
  parser.add_argument(
    "--bad_words", help="file of words, one per line; drop pages with any of them, for c4"
  )
  parser.add_argument(
    "--against",
    action="append",
    default=[],
    metavar="FILES",
    help="evaluation texts, for decontaminate: JSON, JSONL or lines, or a pattern of names; "
    "repeatable",
  )
  parser.add_argument(
    "--language_id",
    default="",
    metavar="MODULE:FUNCTION",
    help="function that returns a text's language, for c4; drops pages not in --language",
  )
  parser.add_argument(
    "--language", default="en", help="language of the kept pages (default: %(default)s)"
  )
  parser.add_argument(
    "--engine",
    choices=slots.names(engines),
    default="processes",
    help="processes of this machine, or Apache Beam (default: %(default)s)",
  )
  parser.add_argument(
    "--workers", type=int, default=os.cpu_count(), help="processes (default: one per core)"
  )
  parser.add_argument(
    "--shard_tokens",
    type=int,
    default=SHARD_VALUES,
    help="a shard closes at the first document end at or after this many tokens (default: "
    "%(default)s)",
  )
  parser.add_argument(
    "--part_bytes",
    type=int,
    default=PART_BYTES,
    help="bytes of source files in a part, which one worker makes (default: %(default)s)",
  )
  parser.add_argument(
    "--verify",
    choices=("size", "full"),
    default="size",
    help="full reads the finished store again and compares its checksums with the written data "
    "(default: %(default)s)",
  )
  return parser


def _read_bad_words(file: str | None) -> tuple[str, ...]:
  """Return the words of a file with one word a line, in lower case and sorted."""
  if not file:
    return ()
  try:
    lines = as_path(file).read_text(encoding="utf-8").splitlines()
  except (OSError, UnicodeDecodeError) as error:
    raise unreadable_file_error(f"--bad_words={file}", error) from error
  return tuple(sorted({line.strip().lower() for line in lines if line.strip()}))


def _steps(args: argparse.Namespace) -> tuple[cleaning.Step, ...]:
  """Return the cleaning steps of the flags.

  Raises:
    UserError: a flag belongs to a step that `--clean` does not name.
  """
  c4 = {
    "min_words": args.min_words,
    "min_sentences": args.min_sentences,
    "language_id": args.language_id,
    "language": args.language,
    "bad_words": _read_bad_words(args.bad_words),
  }
  arguments = {"c4": c4, "decontaminate": {"against": tuple(args.against)}}
  if args.against and "decontaminate" not in args.clean.split(","):
    raise UserError(
      f"--against={args.against[0]}: expected --clean with decontaminate, found "
      f"--clean={args.clean}"
    )
  defaults = _parser().get_default
  for name in c4:
    if getattr(args, name) != defaults(name) and "c4" not in args.clean.split(","):
      raise UserError(
        f"--{name}={getattr(args, name)}: expected --clean with c4, found --clean={args.clean}"
      )
  if args.language != defaults("language") and not args.language_id:
    raise UserError(
      f"--language={args.language}: expected --language_id with the function that returns a page's "
      "language"
    )
  return cleaning.parse_steps(f"--clean={args.clean}", args.clean, arguments)


def _cleaning_record(names: str, steps: tuple[cleaning.Step, ...]) -> dict[str, Any]:
  """Return the record of the steps for a manifest."""
  record: dict[str, Any] = {"steps": [step for step in names.split(",") if step]}
  for step in steps:
    record |= dataclasses.asdict(step)
    if step.edition:
      record[step.name] = step.edition
  return json.loads(json.dumps(record))


def _check_flags(args: argparse.Namespace) -> None:
  """Check numbers and the output; raise UserError for those that cannot be used."""
  for name in ("workers", "shard_tokens", "part_bytes"):
    if getattr(args, name) < 1:
      raise UserError(f"--{name}={getattr(args, name)}: expected at least 1")
  if not 0 <= args.validation_fraction < 1:
    raise UserError(
      f"--validation_fraction={args.validation_fraction}: expected a fraction from 0 to below 1"
    )
  if is_remote(args.output):
    _check_reached(args.output)


def _list_jobs(
  args: argparse.Namespace, documents: Documents, vocabulary: vocabularies.Vocabulary, steps
) -> list[Job]:
  """Return a job for each split that is not finished already."""
  source = documents.source
  root = str(as_path(args.output))
  name = file_names.check_name("--name", args.name or source.name)
  jobs = []
  for output, part in _plan(documents, args.split, args.validation_fraction).items():
    path = f"{root}/{output}"
    record = {
      "documents": summarize_facts(documents.facts()),
      "part": part.record,
      "shard_tokens": args.shard_tokens,
      "part_bytes": args.part_bytes,
    }
    if steps:
      record["cleaning"] = _cleaning_record(args.clean, steps)
    tokens = TokenStoreKind.of(
      documents,
      part,
      args.vocabulary,
      append_eos=args.append_eos,
      steps=steps,
      shard_values=args.shard_tokens,
      part_bytes=args.part_bytes,
    )
    job = Job(tokens, path, name, output, record)
    if _exists(path, vocabulary, {**record, "name": name, "append_eos": args.append_eos}):
      job.progress.rmtree(missing_ok=True)
      print(
        f"{path}: exists already, made from the same inputs (files by name and size); nothing "
        "to do",
        flush=True,
      )
      _warn_of_changes(source, part.split, path)
    else:
      jobs.append(job)
  return jobs


def _print_store(job: Job, verify: str) -> None:
  """Print the counts of a finished store."""
  store = TokenStore.open(job.path, verify=verify)
  print(
    f"{job.path}: {store.num_tokens:,} tokens in {store.num_documents:,} "
    f"documents{describe_skipped(store.manifest.skipped)}; "
    f"fingerprint {store.fingerprint[:12]}; {store.verification}",
    flush=True,
  )
  removals = store.manifest.source["counts"]["removed_within_documents"]
  if removals:
    counts = ", ".join(f"{count:,} {reason}" for reason, count in removals.items())
    print(f"  removed: {counts}")


@handle_errors
def main(argv: list[str] | None = None) -> None:
  # Flags may open the files that they name while they are parsed.
  trust.begin_command(sys.argv[1:] if argv is None else argv)
  args, pipeline = _parser().parse_known_args(argv)
  trust.admit([*vars(args).values()])
  engine_class = slots.find("--engine", args.engine, engines, "Engine")
  if pipeline and not engine_class.takes_options:
    _parser().error(f"unrecognized arguments: {' '.join(pipeline)}")
  _check_flags(args)
  steps = _steps(args)
  vocabulary = vocabularies.load(args.vocabulary)
  if args.split_special_tokens and vocabulary.specials_in_text:
    vocabulary = vocabulary.with_text_only()
    args.vocabulary = f"{as_path(args.output)}/vocabulary"
    vocabulary.save(args.vocabulary)
  documents = Documents(args.source, data_dir=args.data_dir, text_field=args.text_field)
  jobs = _list_jobs(args, documents, vocabulary, steps)
  preparing.prepare(jobs, engine_class(args.workers, pipeline))
  for job in jobs:
    _print_store(job, args.verify)
  if jobs:
    texts = documents.usable(jobs[0].kind.part.split)
    losses = lost_characters.describe_lost_characters(vocabulary, texts)
    if losses:
      print(f"vocabulary {args.vocabulary}: {losses}", flush=True)


if __name__ == "__main__":
  sys.exit(main())
