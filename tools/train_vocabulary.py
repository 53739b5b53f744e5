"""Train a vocabulary on any source: byte-level BPE, SentencePiece (unigram, bpe) or WordPiece.

Example:
  python -m tools.train_vocabulary --source=text:book.txt --size=8192 --output=data/vocabulary
  python -m tools.train_vocabulary --source=jsonl:corpus/*.jsonl.gz --size=32100 \\
      --kind=unigram --output=vocabulary
  python -m tools.train_vocabulary --source=text:b/*.txt --size=30000 --kind=wordpiece \\
      --with_mask --output=vocabulary

The size counts all ids: pad (0), eos (1), unk (2), with --with_mask also [CLS] (3), [SEP] (4) and
[MASK] (5), the pieces, and the sentinels (100 with the highest ids).

Kinds:
  bytelevel_bpe  GPT-2's; restores every text exactly, and learns from passages of several lines
  unigram        T5's SentencePiece model; merges spaces and line ends
  bpe            a SentencePiece model; merges spaces and line ends
  wordpiece      BERT's

All but bytelevel_bpe lose some characters; the share lost is printed.

If the source has more than --max_bytes of text, a random sample of its lines is used. The whole
source is read for the sample, so name only some files of a large source. The same input, options
and number of threads give the same vocabulary. If the output already has this vocabulary, nothing
is done.
"""

import argparse
import functools
import heapq
import io
import json
import random
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

from t5x_like import command_line, trust, vocabularies
from t5x_like.errors import UserError, handle_errors, one_line
from t5x_like.files.paths import AnyPath, as_path, check_directory
from t5x_like.vocabularies import MANIFEST, TOKENIZER_FILES
from t5x_like.vocabularies.kinds._shared import T5_EXTRA_IDS
from t5x_like.vocabularies.kinds.sentencepiece import SentencePieceVocabulary
from t5x_like.vocabularies.kinds.tokenizer import MASK_TOKENS
from t5x_like.vocabularies.protocol import EOS_ID, PAD_ID, UNK_ID

from . import train_tokenizer

RECORD = "training.json"  # the file of the options that the vocabulary was trained with
LOSSLESS = "bytelevel_bpe"
LONGEST_LINE = 4096  # bytes; longer lines are cut, since SentencePiece would skip them
_SUMMARY_LINES = 2_000  # lines from which bytes per token are computed
_SEED = 0
_PROGRESS_SECONDS = 60.0


def _check_options(options: argparse.Namespace) -> None:
  """Check the numbers and combinations of flags; raise UserError if one is unusable."""
  if options.size - options.extra_ids < 8:
    raise UserError(
      f"--size: found {options.size} with {options.extra_ids} sentinels, expected at least "
      f"{options.extra_ids + 8}, since the size counts the sentinels"
    )
  for name, minimum in (("extra_ids", 0), ("max_bytes", 1), ("threads", 1)):
    if getattr(options, name) < minimum:
      raise UserError(f"--{name}: found {getattr(options, name)}, expected {minimum} or more")
  if options.lowercase and options.kind != "wordpiece":
    raise UserError(
      f"--lowercase: found it with --kind={options.kind}, expected --kind=wordpiece; "
      "for other kinds, lowercase the text first"
    )
  if not 0.5 < options.character_coverage <= 1:
    raise UserError(
      f"--character_coverage: found {options.character_coverage}, expected a share "
      "above 0.5 and up to 1"
    )


@handle_errors
def main(arguments: Sequence[str] | None = None) -> int:
  options = _parse_options(arguments)
  output = as_path(options.output)
  _check_options(options)
  from t5x_like.corpora import lost_characters
  from t5x_like.corpora.documents import Documents

  documents = Documents(options.source, data_dir=options.data_dir, text_field=options.text_field)
  record = _training_record(documents.facts(), options)
  if _is_trained(output, record):
    print(f"vocabulary {output} exists already and is the requested one, nothing to do")
    return 0
  start = time.monotonic()
  lines = _read_lines(documents, options)
  vocabulary = _train(lines, options)
  vocabulary.save(output)
  try:
    (output / RECORD).write_text(json.dumps(record, indent=2) + "\n")
  except OSError as error:
    raise UserError(f"{output / RECORD}: cannot be written ({one_line(error)})") from error
  print(
    f"vocabulary {output}: {vocabulary.size:,} ids ({vocabulary.extra_ids} of them sentinels), "
    f"{_bytes_per_token(vocabulary, lines):.2f} bytes a token, "
    f"fingerprint {vocabulary.fingerprint[:12]}, {time.monotonic() - start:.0f} s"
  )
  losses = lost_characters.describe_lost_characters(vocabulary, documents.usable(options.split))
  if losses:
    print(f"  it {losses}; --kind={LOSSLESS} loses none")
  return 0


def _training_record(source_facts: dict, options: argparse.Namespace) -> dict:
  """Return everything that determines the vocabulary, as JSON reads it back."""
  record = {"source": source_facts}
  for name, value in vars(options).items():
    if name not in ("source", "data_dir", "output"):
      record[name] = value
  return json.loads(json.dumps(record))


def _read_lines(documents, options: argparse.Namespace) -> list[bytes]:
  """Read `Documents`, print how much text will be used, and return the lines to train on."""
  split_texts = split_into_runs if options.kind == LOSSLESS else split_into_lines
  lines, total_bytes = sample(split_texts(documents.usable(options.split)), options.max_bytes)
  used_bytes = sum(map(len, lines))
  skipped = ""
  for reason, count in sorted(documents.skipped[options.split].items()):
    skipped += f", {count:,} skipped ({reason})"
  print(
    f"training on {used_bytes / 1e6:.1f} of {total_bytes / 1e6:.1f} MB of "
    f"{documents.source.name}/{options.split}{skipped} ...",
    flush=True,
  )
  return lines


def _bytes_per_token(vocabulary: vocabularies.Vocabulary, lines: Sequence[bytes]) -> float:
  """Return the mean bytes a token of evenly spaced lines."""
  step = max(1, len(lines) // _SUMMARY_LINES)
  texts = [line.decode() for line in lines[::step]]
  num_bytes = sum(len(text.encode()) for text in texts)
  num_tokens = sum(len(ids) for ids in vocabulary.encode_batch(texts))
  return num_bytes / max(1, num_tokens)


def _train(lines: Sequence[bytes], options: argparse.Namespace) -> vocabularies.Vocabulary:
  """Train a vocabulary of the kind in the options."""
  size = options.size - options.extra_ids
  if options.kind in train_tokenizer.KINDS:
    return train_tokenizer.train(
      lines,
      size=size,
      kind=options.kind,
      extra_ids=options.extra_ids,
      with_mask=options.with_mask,
      lowercase=options.lowercase,
      character_coverage=options.character_coverage,
    )
  model = train(
    lines,
    size=size,
    model_type=options.kind,
    threads=options.threads,
    with_mask=options.with_mask,
    character_coverage=options.character_coverage,
    byte_fallback=options.byte_fallback,
  )
  return SentencePieceVocabulary(model, options.extra_ids)


def split_into_lines(documents: Iterable[str]) -> Iterator[bytes]:
  """Yield the non-blank lines of documents in UTF-8, stripped.

  Lines of more than `LONGEST_LINE` bytes are cut at spaces, or at characters if they have none.
  """
  for document in documents:
    for line in document.splitlines():
      data = line.strip().encode(errors="replace")
      start = 0
      while len(data) - start > LONGEST_LINE:
        cut = data.rfind(b" ", start + 1, start + LONGEST_LINE)
        if cut < 0:
          cut = _character_start(data, start + LONGEST_LINE)
        yield data[start:cut]
        start = cut
        while data[start : start + 1].isspace():
          start += 1
      if start < len(data):
        yield data[start:]


def split_into_runs(documents: Iterable[str]) -> Iterator[bytes]:
  """Yield documents in UTF-8 in consecutive runs of at most `LONGEST_LINE` bytes.

  A run ends at a line end, else before a space, else between characters.
  """
  for document in documents:
    data = document.encode(errors="replace")
    start = 0
    while start < len(data):
      end = start + LONGEST_LINE
      if end < len(data):
        end = _cut_position(data, start, end)
      yield data[start:end]
      start = end


def _cut_position(data: bytes, start: int, end: int) -> int:
  """Return the cut in a range: after its last line end, else before its last space, else at `end`.

  The cut is never inside a character.
  """
  line_end = data.rfind(b"\n", start, end)
  if line_end >= 0:
    return line_end + 1
  space = data.rfind(b" ", start + 1, end)
  if space >= 0:
    return space
  return _character_start(data, end)


def _character_start(data: bytes, position: int) -> int:
  """Return the first byte of the character in UTF-8 that contains the byte at `position`."""
  while data[position] & 0xC0 == 0x80:  # a continuation byte
    position -= 1
  return position


def sample(lines: Iterable[bytes], max_bytes: int) -> tuple[list[bytes], int]:
  """Draw a uniform sample of lines, the same for the same lines.

  Each line draws a number, and the sample is the lines with the smallest ones. Memory holds no more
  than the sample.

  Returns:
    (the sampled lines in their order, the number of bytes of all lines). The sample has at most
    `max_bytes`, unless it is one longer line.
  """
  draw_number = random.Random(_SEED).random
  # A heap of (-number, index, line): its first entry has the largest number and is dropped first.
  chosen_lines: list[tuple[float, int, bytes]] = []
  total = 0
  chosen_bytes = 0
  last_report = time.monotonic()
  for index, line in enumerate(lines):
    total += len(line)
    if time.monotonic() - last_report > _PROGRESS_SECONDS:
      last_report = time.monotonic()
      print(f"read {total / 1e6:,.0f} MB so far ...", flush=True)
    key = -draw_number()
    if chosen_bytes + len(line) > max_bytes and chosen_lines and key < chosen_lines[0][0]:
      continue
    heapq.heappush(chosen_lines, (key, index, line))
    chosen_bytes += len(line)
    while chosen_bytes > max_bytes and len(chosen_lines) > 1:
      _, _, dropped_line = heapq.heappop(chosen_lines)
      chosen_bytes -= len(dropped_line)
  chosen_lines.sort(key=lambda entry: entry[1])
  return [line for _, _, line in chosen_lines], total


def train(
  lines: Sequence[bytes],
  *,
  size: int,
  model_type: str = "unigram",
  character_coverage: float = 0.9995,
  byte_fallback: bool = False,
  threads: int = 2,
  with_mask: bool = False,
) -> bytes:
  """Train a SentencePiece model with pad 0, eos 1, unk 2 and no bos; return the serialised model.

  Args:
    lines: UTF-8 text.
    size: number of pieces, including control symbols but not sentinels.
    model_type: `unigram` or `bpe`.
    character_coverage: share of the text's characters that get pieces; others are unknown, or are
      spelled as bytes.
    byte_fallback: spell characters without pieces as bytes (256 of the pieces).
    threads: number of threads; the model may depend on it through rounding.
    with_mask: make [CLS], [SEP] and [MASK] the control pieces 3, 4 and 5, which no text encodes to.

  Raises:
    UserError: the text is too small or too varied for the size.
  """
  import sentencepiece

  model = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(lines),
      model_writer=model,
      vocab_size=size,
      model_type=model_type,
      pad_id=PAD_ID,
      eos_id=EOS_ID,
      unk_id=UNK_ID,
      bos_id=-1,
      character_coverage=character_coverage,
      byte_fallback=byte_fallback,
      num_threads=threads,
      control_symbols=list(MASK_TOKENS) if with_mask else [],
      max_sentence_length=2 * LONGEST_LINE,
      minloglevel=2,
    )
  except (RuntimeError, OSError) as error:
    raise UserError(_explain_training_error(one_line(error), size)) from None
  return model.getvalue()


def _explain_training_error(message: str, size: int) -> str:
  """Translate SentencePiece's message about the size into one about the flags."""
  too_high = re.search(r"too high \(\d+\).*?<= (\d+)", message)
  if too_high:
    return (
      f"--size: found {size} pieces, sentinels not counted, expected at most {too_high[1]} for "
      "this text; choose a smaller --size or a larger text"
    )
  too_low = re.search(r"(\d+) vs (\d+)", message)
  if too_low:
    return (
      f"--size: found {size} pieces, sentinels not counted, too few for the characters of this "
      f"text, expected at least {too_low[2]}, or a lower --character_coverage"
    )
  return f"SentencePiece cannot train a model of {size} pieces: {message}"


def _is_trained(output: AnyPath, record: dict) -> bool:
  """Return whether the output contains this vocabulary; raise UserError if it contains another."""
  if not (output / MANIFEST).exists():
    for name in TOKENIZER_FILES:
      if (output / name).exists():
        raise UserError(
          f"{output}: found the {name} of another tokenizer, expected none; choose another --output"
        )
    return False
  vocabularies.load(str(output))
  try:
    saved = json.loads((output / RECORD).read_text())
  except (OSError, ValueError):
    saved = None
  if isinstance(saved, dict):
    # Older records lack two options, and name the kind `model_type`.
    saved.setdefault("with_mask", False)
    saved.setdefault("lowercase", False)
    model_type = saved.pop("model_type", None)
    saved.setdefault("kind", model_type)
  if saved == record:
    return True
  keys = [key for key in record if not isinstance(saved, dict) or saved.get(key) != record[key]]
  raise UserError(
    f"{output}: found a vocabulary trained with other {', '.join(keys)}, expected none or the "
    "same one; choose another --output or delete that directory"
  )


def _parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
  parser = command_line.Parser(__doc__, opens_runs=False, prog="python -m tools.train_vocabulary")
  parser.add_argument(
    "--source",
    required=True,
    help="FORMAT:REST, such as jsonl:corpus/*.gz; see t5x_like/corpora/sources",
  )
  parser.add_argument("--data_dir", help="where TensorFlow datasets are or will be prepared")
  parser.add_argument(
    "--text_field", default="text", help="the key, feature or column of the text (default: text)"
  )
  parser.add_argument("--split", default="train", help="the split to train on (default: train)")
  output_type = functools.partial(check_directory, flag="--output")
  parser.add_argument("--output", required=True, type=output_type, help="the directory to write")
  parser.add_argument(
    "--size", type=int, required=True, help="the number of ids, sentinels included"
  )
  parser.add_argument(
    "--extra_ids", type=int, default=T5_EXTRA_IDS, help="sentinels (default: 100)"
  )
  parser.add_argument(
    "--kind",
    "--model_type",
    choices=(*train_tokenizer.KINDS, "unigram", "bpe"),
    default=LOSSLESS,
    help="the kind of vocabulary (default: %(default)s)",
  )
  parser.add_argument(
    "--with_mask", action="store_true", help="add [CLS], [SEP] and [MASK], as BERT's family needs"
  )
  parser.add_argument(
    "--lowercase", action="store_true", help="fold case and accents (wordpiece only)"
  )
  parser.add_argument(
    "--character_coverage",
    type=float,
    default=0.9995,
    help="share of the text's characters that get pieces (default: %(default)s)",
  )
  parser.add_argument(
    "--byte_fallback", action="store_true", help="spell characters without pieces as bytes"
  )
  parser.add_argument(
    "--max_bytes", type=int, default=10_000_000, help="the most text to train on (default: 10 MB)"
  )
  parser.add_argument("--threads", type=int, default=2, help="threads of the trainer (default: 2)")
  # Parsing opens the files of some flags, so they are admitted first.
  trust.begin_command(sys.argv[1:] if arguments is None else arguments)
  args = parser.parse_args(arguments)
  trust.admit(list(vars(args).values()))
  return args


if __name__ == "__main__":
  sys.exit(main())
