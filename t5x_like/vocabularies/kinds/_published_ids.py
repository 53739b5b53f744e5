"""Find the special ids of a published tokenizer in its files."""

import dataclasses
import re

from t5x_like.errors import UserError
from t5x_like.vocabularies import CONFIG
from t5x_like.vocabularies.kinds._tokenizer_files import MODEL_CONFIG, NAMES

SPELLINGS = {  # used if no file names them
  "bos": ("<s>", "<bos>", "<|startoftext|>", "<|begin_of_text|>", "<|endoftext|>"),
  "eos": ("</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>", "[EOS]"),
  "unk": ("<unk>", "[UNK]"),
  "sep": ("[SEP]", "<sep>"),
  "pad": ("<pad>", "[PAD]"),
  "cls": ("[CLS]", "<cls>"),
  "mask": ("[MASK]", "<mask>"),
}
SENTINELS = ("<extra_id_{}>", "\u2581<extra_id_{}>")
# model types whose decoder starts with EOS unless their config says otherwise
EOS_FIRST = ("bart", "mbart")


@dataclasses.dataclass(frozen=True)
class PublishedIds:
  """Ids that other files than `tokenizer.json` decide; see `protocol.Vocabulary`."""

  pad_id: int | None
  eos_id: int
  unk_id: int
  bos_id: int | None
  mask_id: int | None
  cls_id: int | None
  sep_id: int | None
  decoder_start_id: int
  sentinels: tuple[int, ...]
  specials_in_text: bool


def find_published_ids(
  where: str,
  ids: dict[str, int],
  named: dict[str, str],
  model_config: dict,
  config: dict,
  pattern: str | None,
) -> PublishedIds:
  """Determine the special ids: as named, else from `config.json`, else by their usual spellings.

  Args:
    ids: the ids of all pieces.
    named: the special pieces that the files name, by names such as "eos".
    pattern: the sentinels' spelling with {} for the number; None tries those of `SENTINELS`.
  """
  ids_by_name = {}
  for name in NAMES:
    ids_by_name[name] = _find_id(name, ids, named, model_config)
  eos = ids_by_name["sep"] if ids_by_name["eos"] is None else ids_by_name["eos"]
  if eos is None:
    raise UserError(
      f"{where}: found no end of text, expected eos_token or sep_token in {CONFIG}, or "
      f"eos_token_id in {MODEL_CONFIG}"
    )
  start = model_config.get("decoder_start_token_id")
  if start is None:
    starts_with_eos = model_config.get("model_type") in EOS_FIRST or ids_by_name["pad"] is None
    start = eos if starts_with_eos else ids_by_name["pad"]
  # a piece that also stands for something else is not padding
  other_ids = {eos, *(i for name, i in ids_by_name.items() if name != "pad")}
  pad = None if ids_by_name["pad"] in other_ids else ids_by_name["pad"]
  return PublishedIds(
    pad_id=pad,
    eos_id=eos,
    unk_id=eos if ids_by_name["unk"] is None else ids_by_name["unk"],
    bos_id=ids_by_name["bos"],
    mask_id=ids_by_name["mask"],
    cls_id=ids_by_name["cls"],
    sep_id=ids_by_name["sep"],
    decoder_start_id=start,
    sentinels=_find_sentinels(where, ids, pattern),
    specials_in_text=not config.get("split_special_tokens", False),
  )


def _find_id(
  name: str, ids: dict[str, int], named: dict[str, str], model_config: dict
) -> int | None:
  """Return the id of a special piece, such as "bos"; None if there is none."""
  if name in named:
    return ids.get(named[name])
  stated = model_config.get(f"{name}_token_id")
  if isinstance(stated, list) and stated:
    stated = stated[0]
  if isinstance(stated, int) and 0 <= stated <= max(ids.values()):
    return stated
  if named:  # a file that names some of them has no others
    return None
  return next((ids[piece] for piece in SPELLINGS[name] if piece in ids), None)


def _find_sentinels(where: str, ids: dict[str, int], pattern: str | None) -> tuple[int, ...]:
  """Return the ids of a pattern's pieces up to the first missing number.

  Numbers begin with 0 or, if 0 is missing, with 1.
  """
  if pattern is not None and pattern.count("{}") != 1:
    raise UserError(
      f"--sentinels={pattern}: expected a pattern with {{}} where the number "
      f"stands, as '<unused{{}}>'"
    )
  candidates = SENTINELS if pattern is None else (pattern,)
  for candidate in candidates:
    number = 0 if candidate.format(0) in ids else 1
    sentinels = []
    while candidate.format(number) in ids:
      sentinels.append(ids[candidate.format(number)])
      number += 1
    if sentinels:
      return tuple(sentinels)
  if pattern is not None:
    advice = _list_patterns(ids)
    raise UserError(f"{where}: found no piece {pattern.format(0)!r}, expected one{advice}")
  return ()


def _list_patterns(ids: dict[str, int]) -> str:
  """Return a hint at the pieces that could be sentinels, with {} for their numbers."""
  patterns = set()
  for piece in ids:
    if re.fullmatch(r"\W*[a-z_|]+[0-9]+\W*", piece):
      patterns.add(re.sub("[0-9]+", "{}", piece, count=1))
  return f"; there are {', '.join(sorted(patterns)[:8])}" if patterns else ""
