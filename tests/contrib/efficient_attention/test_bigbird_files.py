"""Files of BigBird, and a Linformer, which has no Hugging Face form."""

import pytest

import tiny
from t5x_like.contrib.efficient_attention.models import bigbird, linformer
from t5x_like.errors import UserError
from t5x_like.interop import hf
from tests.interop import test_golden
from tests.interop.encoder_files import rewrite, shrunk


def test_an_unknown_type_of_attention_is_refused(tmp_path):
  directory = tmp_path / "bigbird"
  test_golden.write("bigbird", directory)
  rewrite(directory, attention_type="random")
  with pytest.raises(UserError, match="'attention_type' is 'random'"):
    hf.load(str(directory))


@pytest.mark.parametrize(
  "family, variant, arguments, message",
  [
    (bigbird, "bigbird-roberta-base", {"design": {"core": "local"}}, "design.core is 'local'"),
    (linformer, "linformer-base-256", {}, "no Hugging Face family matches"),
  ],
  ids=["bigbird", "linformer"],
)
def test_an_attention_that_no_type_describes_is_not_written(
  family, variant, arguments, message, tmp_path
):
  model = tiny.abstract(shrunk(family.VARIANTS[variant]), family=family, **arguments)
  with pytest.raises(UserError, match=message):
    hf.save(model, str(tmp_path / "out"))
