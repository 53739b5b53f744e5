"""Every engine removes the same duplicates as plain loops over the corpus."""

from collections import Counter

import numpy as np
import pytest

import json_lines
from preparations import decode_documents, prepare, read_files
from t5x_like.corpora.cleaning import _repeats, exact, near, spans
from t5x_like.corpora.engines import processes
from t5x_like.segmentation import sentences
from t5x_like.store.tokens import TokenStore


def words(seed: int, count: int = 300) -> list[str]:
  return [f"w{i}" for i in np.random.default_rng(seed).integers(0, 5000, count)]


def remove_exact_duplicates(texts):
  """Return the first text of each signature."""
  signatures = set()
  kept_texts = []
  for text in texts:
    (signature,) = exact.Step().sign(text).tolist()
    if signature not in signatures:
      kept_texts.append(text)
      signatures.add(signature)
  return kept_texts


def is_similar(minhash, earlier_minhashes) -> bool:
  return any(np.mean(earlier == minhash) >= 0.8 for earlier in earlier_minhashes)


def remove_near_duplicates(texts):
  """Return the texts that are similar to no representative in any of their bands."""
  representatives = {}
  kept_texts = []
  for text in texts:
    minhash = near.minhash(text)
    is_near_duplicate = False
    for key in near.band_keys(minhash).tolist():
      earlier_minhashes = representatives.setdefault(key, [])
      if is_similar(minhash, earlier_minhashes):
        is_near_duplicate = True
      else:
        earlier_minhashes.append(minhash)
    if not is_near_duplicate:
      kept_texts.append(text)
  return kept_texts


def remove_repeated_spans(texts, min_sentences):
  """Return (the texts without repeated spans, the number of removed spans).

  A text that has fewer than `min_sentences` after losing a span is removed.
  """
  spans_before = set()
  kept_texts = []
  num_repeated = 0
  for text in texts:
    is_repeated = []
    for span in spans.Step().sign(text).tolist():
      is_repeated.append(span in spans_before)
      spans_before.add(span)
    num_repeated += sum(is_repeated)
    if any(is_repeated):
      text = spans.Step().remove_marked(text, np.array(is_repeated, bool))[0]
      if len(list(sentences(text))) < min_sentences:
        continue
    kept_texts.append(text)
  return kept_texts, num_repeated


def remove_duplicates(texts, steps, min_sentences=3):
  """Remove duplicates by loops over the corpus.

  Returns: (the remaining texts, numbers of removed texts by reason, numbers of removed spans).
  """
  removed_pages = Counter()
  removed_spans = Counter()
  if "exact" in steps:
    num_pages = len(texts)
    texts = remove_exact_duplicates(texts)
    removed_pages["exact duplicate"] = num_pages - len(texts)
  if "near" in steps:
    num_pages = len(texts)
    texts = remove_near_duplicates(texts)
    removed_pages["near duplicate"] = num_pages - len(texts)
  if "spans" in steps:
    num_pages = len(texts)
    texts, removed_spans["span: repeated"] = remove_repeated_spans(texts, min_sentences)
    removed_pages["too short without repeated spans"] = num_pages - len(texts)
  # Unary plus drops counts of zero.
  return texts, dict(+removed_pages), dict(+removed_spans)


def make_corpus(seed: int = 0) -> list[str]:
  """Return pages, some of them copies, near copies or halves of earlier pages."""
  generator = np.random.default_rng(seed)
  texts = []
  for i in range(300):
    # 1: a copy, 2: a near copy, 3: half of an earlier page; otherwise a new page.
    kind = generator.integers(0, 6)
    text = words(int(generator.integers(2**31)), int(generator.integers(30, 200)))
    page = [[*text[start : start + 8]] for start in range(0, len(text), 8)]
    if texts and kind in (1, 2, 3):
      earlier_text = texts[int(generator.integers(len(texts)))]
      if kind == 1:
        texts.append(earlier_text.upper())
        continue
      page = [sentence.strip(" .").split() for sentence in sentences(earlier_text)]
      if kind == 2:  # with a similarity around 0.8
        for _ in range(int(generator.integers(1, 4))):
          page[int(generator.integers(len(page)))][0] = f"changed{i}"
      else:
        page = page[: max(3, len(page) // 2)] + [[f"new{i}"] * 4] * 3
    texts.append(" ".join(" ".join(sentence) + "." for sentence in page))
  return texts


def random_entries(generator, count: int, num_keys: int, num_positions: int):
  """Return entries at distinct positions of the corpus, in random order."""
  positions = generator.permutation(num_positions)[:count]
  part = positions % 3
  key = generator.integers(0, num_keys, count).astype(np.uint64)
  return {"part": part, "key": key, "position": positions}


@pytest.mark.parametrize("count", [0, 1, 2, 400])
def test_entries_are_marked_as_by_a_plain_loop(count, monkeypatch):
  generator = np.random.default_rng(count)
  key_entries = random_entries(generator, count, num_keys=40, num_positions=1_000)
  order = sorted(range(count), key=lambda n: (key_entries["part"][n], key_entries["position"][n]))
  keys = key_entries["key"].tolist()
  num_entries = Counter(keys)
  first_entry = {key: next(n for n in order if keys[n] == key) for key in num_entries}
  expected_repeats = [first_entry[key] != n for n, key in enumerate(keys)]
  assert _repeats.mark_repeats(**key_entries).tolist() == expected_repeats
  assert near.mark_shared(**key_entries).tolist() == [num_entries[key] > 1 for key in keys]
  minhash = generator.integers(0, 2, (count, 16)).astype(np.uint32)
  monkeypatch.setattr(near, "_PAIRS_AT_ONCE", 7)
  for max_representatives in (3, 1_000):
    monkeypatch.setattr(near, "REPRESENTATIVES", max_representatives)
    expected = [False] * count
    representatives = {}
    for n in order:
      earlier_minhashes = representatives.setdefault(keys[n], [])
      expected[n] = is_similar(minhash[n], earlier_minhashes)
      if not expected[n] and len(earlier_minhashes) < max_representatives:
        earlier_minhashes.append(minhash[n])
    assert near.mark_similar(**key_entries, minhash=minhash).tolist() == expected


@pytest.mark.parametrize("steps", ["exact", "near", "spans", "exact,near", "c4,exact,near,spans"])
def test_preparation_removes_the_same_duplicates_as_a_plain_loop(steps, tmp_path, monkeypatch):
  texts = make_corpus()
  step_names = steps.split(",")
  is_cleaned = "c4" in step_names
  for part in range(4):
    rows = [{"text": text} for text in texts[part * 75 : part * 75 + 75]]
    json_lines.write(tmp_path / f"{part}.jsonl", rows)
  source = f"jsonl:{tmp_path}/*.jsonl"
  flags = ["--split=train", "--part_bytes=1", "--shard_tokens=20000", f"--clean={steps}"]
  if is_cleaned:
    flags.append("--min_words=1")
  monkeypatch.setattr(processes, "_RANGE_BYTES", 10_000)  # makes many ranges of keys
  assert prepare(source, tmp_path / "here", *flags) == 0
  store = TokenStore.open(tmp_path / "here" / "train")
  min_sentences = 3 if is_cleaned else 1
  expected_texts, skipped, removed = remove_duplicates(texts, step_names, min_sentences)
  assert decode_documents(store) == expected_texts
  counts = store.manifest.source["counts"]
  assert store.manifest.skipped == skipped
  assert counts["removed_within_documents"] == removed
  assert len(skipped) + len(removed) >= len(step_names) - 1  # the corpus has each kind
  assert store.manifest.num_shards > 6
  if not is_cleaned:
    return
  pytest.importorskip("apache_beam")
  beam = ["--engine=beam", "--runner=FnApiRunner"]
  assert prepare(source, tmp_path / "beam", *flags, *beam) == 0
  assert read_files(tmp_path / "beam") == read_files(tmp_path / "here")


def test_minhash_estimates_the_similarity_of_shingles():
  base = words(3, 2000)
  half_changed = base[:1000] + words(4, 1000)
  a = near.minhash(" ".join(base))
  b = near.minhash(" ".join(half_changed))
  assert abs(np.mean(a == b) - 1 / 3) < 0.13  # 3 standard deviations of 128 draws


def test_first_of_repeated_spans_is_kept():
  common = "One common thing was said. Then came another. And so it ended."
  texts = [
    f"First of all this. {common}",
    f"{common} Something new came after it.",
    f"{common} {common}",
  ]
  texts_left, _, removed = remove_duplicates(texts, ("spans",), 1)
  assert texts_left[:2] == [texts[0], "Something new came after it."]
  assert removed == {"span: repeated": 3}
