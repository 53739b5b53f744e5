"""Questions with places for passages: rows, cut texts, and the passage that a text is from."""

import json

import numpy as np

from t5x_like.data import loader, task

EOS = 1
PAD = 0


def build(folder, **changes):
  rows = [
    {"text": f"{name} was here. {name} is gone.", "id": name} for name in ("Ada", "Bob", "Eve")
  ]
  (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  arguments = {
    "source": f"salient:jsonl:{folder}/texts.jsonl",
    "inputs": "{inputs}",
    "targets": "{targets}",
  }
  arguments |= {
    "passages": f"jsonl:{folder}/texts.jsonl",
    "cache": str(folder / "cache"),
    "vocabulary": "bytes",
  }
  return task.build("open_qa", "train", **arguments | changes)


def test_rows_have_their_answer_and_the_number_of_their_own_passage(tmp_path, capsys):
  names = tmp_path / "names.jsonl"
  names.write_text(
    "".join(json.dumps({"text": name, "spans": [[0, 3]]}) + "\n" for name in ("Ada", "Bob", "Eve"))
  )
  source = f"salient:{names}@jsonl:{tmp_path}/texts.jsonl"
  built_task = build(
    tmp_path, source=source, own="{text}", retrieved=2, passage_length=12, targets_length=4
  )
  assert built_task.num_examples == 6 and built_task.passages.num_passages == 3
  assert "6 of 6 texts are from a passage" in capsys.readouterr().out
  batch = next(loader.eval_batches(built_task, batch_size=6))
  assert batch["own_passage"].tolist() == [0, 0, 1, 1, 2, 2]
  assert batch["passage_tokens"].shape == (6, 3, 12) and not batch["passage_tokens"].any()
  decode = lambda row: built_task.vocabulary.decode([int(i) for i in row if i not in (PAD, EOS)])  # noqa: E731
  assert [decode(row) for row in batch["decoder_target_tokens"]] == [
    "Ada",
    "Ada",
    "Bob",
    "Bob",
    "Eve",
    "Eve",
  ]
  assert decode(batch["encoder_input_tokens"][2]) == "nem: _X_ was here."
  np.testing.assert_array_equal(
    batch["decoder_input_tokens"][:, 1:], batch["decoder_target_tokens"][:, :-1]
  )
  cut = built_task.passages.rows(np.array([1]))[0]
  assert decode(cut) == "Bob was her" and cut[-1] == EOS
