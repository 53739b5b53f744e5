"""`tools.coordinates` shows that activations change alike at all widths under muP only."""

import json

import pytest

from tools import coordinates

VARIANT = {
  "dims": {"embed": 16, "heads": 1, "kv_heads": 1, "head_dim": 16, "mlp": 16, "layers": 1},
  "design": {"activation": "relu", "init_stddev": 0.1, "tied": False},
  "vocab_size": 384,
}
SMALL = {
  "model.variant": json.dumps(VARIANT),
  "model.vocab_size": 384,
  "task.store": "builtin",
  "task.length": 32,
  "optimizer.name": "adamw",
}


@pytest.mark.runs
def test_changes_grow_with_the_width_except_under_mup(tmp_path):
  def exponents(*flags):
    output = tmp_path / "found.json"
    settings = [f"--config.{key}={value}" for key, value in SMALL.items()]
    call = [
      "--config=configs/gpt/my_text.py",
      "--widths=16,256",
      "--steps=3",
      "--rate=0.01",
      f"--output={output}",
    ]
    assert coordinates.main([*call, *settings, *flags]) == 0
    report = json.loads(output.read_text())
    assert report["widths"] == [16, 256]
    return report["exponents"]

  names = {"decoder 0 self_attention", "decoder 0 mlp", "logits"}
  plain = exponents()
  assert plain.keys() == names
  assert max(plain.values()) > 0.5
  mup = exponents("--config.tuning.name=mup", "--config.tuning.base=16")
  assert mup.keys() == names
  assert max(map(abs, mup.values())) < 0.35


def test_the_table_names_the_power_of_the_width():
  assert coordinates.exponent([64, 256], [1.0, 4.0]) == pytest.approx(1.0)
  assert coordinates.table(["64", "256"], {"logits": [1.0, 4.0]}, {"logits": 1.0}).endswith("+1.00")
