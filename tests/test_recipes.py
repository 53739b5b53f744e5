"""Every recipe: what it describes, by abstract evaluation, and two steps of its `:debug` form."""

import inspect
import json
import math
import pathlib

import pytest

import more
from t5x_like import config as config_lib
from t5x_like import laptop, models, recipes, slots, train
from t5x_like.errors import UserError
from t5x_like.files import checked_json
from t5x_like.interop.published_images import processor_config
from t5x_like.nn import params
from t5x_like.report.writer import read_metrics
from t5x_like.training.build import build_parts
from t5x_like.training.resolve import resolve
from tests import topics

pytestmark = pytest.mark.usefixtures("compiled")

RECIPES = sorted(
  p.as_posix() for p in pathlib.Path("configs").rglob("*.py") if p.name != "__init__.py"
)


# One that pretrains and one that fine-tunes; the tests of other commands train a T5 and a GPT.
SHOWN = tuple(f"configs/{name}.py" for name in ("bert/base", "finetune/encoder"))


def debug_recipes():
  """Recipes with one `:debug` form run it once: in `make test` those of `SHOWN`, others in `make
  test-more`."""
  forms = {}
  for recipe in (*SHOWN, *RECIPES):
    forms.setdefault(checked_json.digest(recipes.load(f"{recipe}:debug").to_dict()), recipe)
  return [recipe if recipe in SHOWN else more.later(recipe) for recipe in forms.values()]


# Keys that say which corpus, and what of it.
CORPUS = (
  "store",
  "source",
  "vocabulary",
  "inputs",
  "targets",
  "parts",
  "shared",
  "period",
  "text",
  "pair",
  "labels",
  "template",
  "image_field",
  "caption_field",
  "folder",
  "tags",
  "tags_field",
  "prompt",
  "fields",
  "passages",
  "passages_split",
  "passage",
  "own",
  "rates",
  "weights",
)
LENGTHS = (
  "length",
  "inputs_length",
  "targets_length",
  "prompt_length",
  "passage_length",
  "new_tokens",
  "resolution",
  "patch",
)
# Parameters of T5 1.1 and 1.0 with the vocabulary of 32,128.
GOLDEN = {
  "small": (76_961_152, 60_506_624),
  "base": (247_577_856, 222_903_552),
  "large": (783_150_080, 737_668_096),
  "xl": (2_849_757_184, 2_851_598_336),
  "xxl": (11_135_332_352, 11_307_321_344),
}


def parts(recipe: str, *overrides: str):
  config = resolve(recipes.load(recipe, overrides))
  built = build_parts(config)
  return config, built, sum(math.prod(p.shape) for p in params.named_params(built.model).values())


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_resolves_and_builds_without_allocating(recipe):
  config, built, count = parts(recipe)
  assert set(config) == set(config_lib.defaults())
  assert count == sum(x.size for x in built.state.params.values())
  if config.task.name == "span_corruption" and "quickstart" not in recipe and "byt5" not in recipe:
    assert config.task.inputs_length == 512
    assert config.task.targets_length == 114
  assert pathlib.Path(recipe).read_text().count(f"--config={recipe}") or "quickstart" in recipe


@pytest.mark.parametrize(
  ("recipe", "undecayed"),
  # fairseq and its children have one group of parameters; the code of BERT spares gains and biases
  {
    "roberta/base": "nothing",
    "roberta/batches": "nothing",
    "bart/base": "nothing",
    "opt/125m": "nothing",
    "bert/spanbert": "nothing",
    "bert/base": "vectors",
    **topics.cases("UNDECAYED"),
  }.items(),
)
def test_weights_decay_as_in_the_authors_code(recipe, undecayed):
  config = resolve(recipes.load(f"configs/{recipe}.py"))
  assert config.optimizer.name == "adamw"
  assert config.optimizer.undecayed == undecayed


def test_bloom_drops_out_by_the_defaults_of_megatron():
  assert resolve(recipes.load("configs/bloom/560m.py")).model.dropout == 0.1


def test_mixtral_weighs_its_balance_as_much_as_transformers():
  """`load_balancing_loss_func` pools the layers and is `top_k` when balanced; ours sums layers of
  which each is 1."""
  experts = resolve(recipes.load("configs/mixtral/8x7b.py")).model.design["experts"]
  assert experts["balance_loss"] == pytest.approx(0.02 * 2 / 32)


def test_pythia_has_the_gelu_of_its_configs():
  """`bias_gelu_fusion`, which is the tanh form in megatron/model/activations.py of
  EleutherAI/gpt-neox."""
  config = resolve(recipes.load("configs/neox/pythia_160m.py"))
  assert build_parts(config).model.variant.design.activation == "gelu_tanh"


def test_languages_and_optimizer_are_those_of_the_code_of_mt5_and_umt5():
  """`MC4_LANGUAGES` of TFDS, which mT5's mixture takes, and adafactor_momentum_nofactor.gin of
  umT5's XXL."""
  languages = recipes.load_module("configs/mt5/base.py").LANGUAGES
  latin = [f"{language}-Latn" for language in ("bg", "el", "hi", "ja", "ru", "zh")]
  assert len(set(languages)) == 101 + 6
  assert [name for name in languages if "-" in name] == latin
  base = resolve(recipes.load("configs/mt5/umt5_base.py"))
  xxl = resolve(recipes.load("configs/mt5/umt5_base.py:xxl"))
  assert base.optimizer.name == "adafactor"
  assert base.clip_norm == 0.0
  assert xxl.clip_norm == 1.0
  expected = {"decay_rate": 0.8, "momentum": 0.9, "clipping_threshold": 1.0, "decay_power": None}
  assert xxl.optimizer.to_dict().items() >= {"name": "unfactored_adafactor", **expected}.items()


@pytest.mark.parametrize(
  ("recipe", "decay"),
  [
    ("bert/base.py", "from_start"),
    ("bert/spanbert.py", "after_warmup"),
    ("albert/base.py", "from_start"),
    ("electra/small.py", "from_start_times_warmup"),
    ("finetune/decoder.py", "from_start_times_warmup"),
    ("finetune/encoder.py", "from_start"),
    ("finetune/encoder.py:electra", "from_start_times_warmup"),
    ("finetune/encoder.py:roberta", "after_warmup"),
    ("roberta/base.py", "after_warmup"),
    ("roberta/input_formats.py", "after_warmup"),
    ("xlnet/base.py", "after_warmup"),
    *topics.cases("RATE_DECAYS").items(),
  ],
)
def test_rates_decay_as_in_the_code_of_the_authors(recipe, decay):
  """`create_optimizer` of BERT, ALBERT, BigBird and ELECTRA, `warmup_linear` of GPT-1; fairseq's
  and XLNet's."""
  assert recipes.load(f"configs/{recipe}").schedule.get("decay", "after_warmup") == decay


def test_encoders_have_their_papers_values_of_each_task():
  def values(argument):
    config = resolve(recipes.load(f"configs/finetune/encoder.py:{argument}"))
    return config.schedule.learning_rate, config.batch_size, config.total_steps

  assert values("squad/squad_v2") == (5e-5, 48, 2 * 130_319 // 48)
  assert values("squad/squad") == (5e-5, 32, 3 * 87_599 // 32)
  assert values("choices/swag")[:2] == (2e-5, 16)
  assert values("glue/cola") == (3e-5, 32, 3 * 8_551 // 32)
  assert values("squad/squad_v2,electra") == (1e-4, 32, 2 * 130_319 // 32)
  assert values("squad/squad_v2,roberta")[:2] == (1.5e-5, 48)
  shorter = recipes.load("configs/finetune/encoder.py:glue/qqp", ["total_steps=60"])
  config = resolve(shorter)
  assert config.eval_every == 6
  assert config.checkpoint.every == 6
  assert build_parts(config).schedule(6) > 0


def test_electra_reads_the_raw_first_token():
  """`get_prediction_module` and `get_pooled_output` of google-research/electra."""
  for argument, activation in (("glue/cola,electra", None), ("own,electra", "gelu")):
    config = resolve(recipes.load(f"configs/finetune/encoder.py:{argument}"))
    names = params.arrays(build_parts(config).model)
    assert config.model.head.activation == activation
    assert ("head/pooler/dense/kernel" in names) == (activation is not None)
    assert "head/out/kernel" in names


def test_closed_book_questions_have_the_steps_of_their_paper():
  """The command of t5_closed_book_qa in google-research: 10,000 steps of 196,608 tokens."""
  config = recipes.load("configs/finetune/text_to_text.py:text/web_questions")
  assert config.total_steps == 10_000
  assert config.batch_size * config.task.inputs_length == 196_608


@pytest.mark.parametrize(("size", "counts"), GOLDEN.items())
def test_the_sizes_of_the_paper(size, counts):
  recipe = f"configs/t5/base.py:{size}"
  assert (parts(recipe)[2], parts(f"{recipe},v1_0")[2]) == counts
  new = parts(recipe)[0]
  old = parts(f"{recipe},v1_0")[0]
  assert new.model.vocab_size == 32128
  assert new.batch_size == 128
  assert new.total_steps == 524288
  assert new.model.dropout == 0.0
  assert old.model.dropout == 0.1
  assert new.optimizer.name == "adafactor"
  assert new.schedule.name == "rsqrt"
  assert new.schedule.warmup_steps == 10_000


def test_a_masked_autoencoder_is_probed_and_evaluated_as_by_its_authors():
  """Their probe reads the class token, their fine-tuning the mean; above 224, the shorter side is
  seen whole."""
  configs = [
    recipes.load(f"configs/vit/mae_classify.py:{words}")
    for words in ("huge", "huge_448", "huge,probe")
  ]
  expected = [("mean", 0.875), ("mean", 1.0), ("token", 0.875)]
  assert [(config.model.head.pooling, config.task.crop) for config in configs] == expected


def test_lamb_has_the_epsilon_that_deits_code_hands_it():
  """timm's `create_optimizer` passes `--opt-eps`, 1e-8, where Apex would take 1e-6."""
  assert recipes.load("configs/deit/deit3.py").optimizer.eps == 1e-8


def test_the_baseline_of_big_vision_has_the_activation_of_flax():
  assert recipes.load("configs/vit/small.py").model.design.activation == "gelu_tanh"


def test_siglip_sees_images_in_evaluations_as_its_published_processors_do():
  processor = processor_config(recipes.load("configs/siglip/base.py").task.to_dict())
  assert processor["size"] == {"height": 224, "width": 224}
  assert "do_center_crop" not in processor


@pytest.mark.parametrize("recipe", debug_recipes())
def test_a_recipe_runs_two_debug_steps(recipe, tmp_path, capsys):
  flags = ("--config.peak_flops=1e11",)
  assert train.main([f"--config={recipe}:debug", f"--workdir={tmp_path}", *flags]) == 0, (
    capsys.readouterr().err
  )
  rows = read_metrics(tmp_path)
  assert [row["step"] for row in rows if "train/loss" in row] == [1, 2]
  assert all(math.isfinite(value) for row in rows for value in row.values())
  assert any(name.startswith("eval/") and name.endswith("/examples") for name in rows[-1])
  saved = json.loads((tmp_path / "config.json").read_text())
  assert saved["total_steps"] == 2
  assert (tmp_path / "report.html").stat().st_size > 10_000
  assert (tmp_path / "checkpoints" / "2").is_dir()


@pytest.mark.more
def test_the_first_version_runs_too(tmp_path, capsys):
  flags = ("--config.peak_flops=1e11", "--config.evals={}")
  assert (
    train.main(["--config=configs/t5/base.py:v1_0,debug", f"--workdir={tmp_path}", *flags]) == 0
  )
  assert "t5-tiny" in capsys.readouterr().out


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_laptop_forms_keep_what_a_recipe_is_about(recipe):
  full = recipes.load(recipe)
  tiny = recipes.load(f"{recipe}:tiny")
  debug = recipes.load(f"{recipe}:debug")
  about = lambda config: (  # noqa: E731
    config.model.name,
    slots.name_and_arguments("model.head", config.model.get("head") or "none")[0],
    config.objective.name,
    config.optimizer,
    config.schedule.name,
    config.clip_norm,
    config.phases.keys(),
    config.task.name,
    {k: v for k, v in config.task.items() if k not in LENGTHS + CORPUS},
  )
  assert about(tiny) == about(full) == about(debug)
  corpus = [key for key in CORPUS[:5] if key in full.task]
  assert all(tiny.task[key] == full.task[key] for key in corpus)
  assert tiny.model.get("vocab_size", "auto") == "auto"
  assert tiny.total_steps == 400
  assert debug.total_steps == 2


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_unknown_argument_is_refused(recipe):
  with pytest.raises(UserError, match="'debgu': unknown .did you mean 'debug'"):
    recipes.load(f"{recipe}:debgu")


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_argument_resolves_to_a_config_of_its_own(recipe):
  words = [
    option
    for option, (parameter, _) in recipes.argument_choices(
      recipes.load_module(recipe).get_config
    ).items()
  ]
  assert words[-2:] == ["tiny", "debug"]
  default = checked_json.digest(resolve(recipes.load(recipe)).to_dict())
  resolved = {
    checked_json.digest(resolve(recipes.load(f"{recipe}:{option}")).to_dict())
    for option in words[:-2]
  }
  parameters = inspect.signature(recipes.load_module(recipe).get_config).parameters
  # the size of the recipe itself
  defaults = sum(str(parameter.default) in words for parameter in parameters.values())
  same = max(1, defaults) - 1  # each parameter's default is the recipe itself
  assert len(resolved) == len(words) - 2 - same
  assert (default in resolved) == bool(defaults)


@pytest.mark.parametrize("words", ["small,large", "small,small", "tiny,debug"])
def test_of_words_that_exclude_each_other_one_is_taken(words):
  with pytest.raises(
    UserError, match=f"'{words.split(',')[1]}': found '{words.split(',')[0]}' before it"
  ):
    recipes.load(f"configs/t5/base.py:{words}")


def test_a_laptop_takes_the_tiny_size_with_the_design_of_the_full_one():
  tiny = {
    ("t5", "mt5-base"): "t5-v1_1-tiny",
    ("t5", "umt5-base"): "t5-v1_1-tiny",
    ("t5", "t5-3b"): "t5-tiny",
    ("t5_lm", "prefix-base"): "prefix-tiny",
    ("t5_lm", "v1_1-base"): "v1_1-tiny",
    ("gpt", "gpt1"): "gpt2-tiny",
    ("switch", "switch-base-128"): "switch-tiny-8",
    ("llama", "llama3.1-8b"): "tiny",
  }
  assert {key: laptop.tiny_variant(*key) for key in tiny} == tiny
  for family in slots.names(models):
    variants = slots.find("family", family, models, "Model").VARIANTS
    assert all("tiny" in laptop.tiny_variant(family, variant) for variant in variants)


@pytest.mark.parametrize(
  ("overrides", "evaluators"),
  [
    ([], {"loss", "span_infilling"}),
    (['task={"name": "ul2", "store": "builtin"}'], {"loss", "span_infilling"}),
    (['task={"name": "text_to_text", "source": "builtin"}'], {"loss"}),
    (['task={"name": "prefix_lm", "store": "builtin"}', "evals.span_infilling.samples=2"], None),
  ],
)
def test_only_tasks_with_sentinels_have_their_spans_evaluated(overrides, evaluators):
  config = recipes.load("configs/t5/base.py:debug", overrides)
  assert set(config.evals) == (evaluators or {"loss", "span_infilling"})


def test_the_laptop_form_of_a_recipe_overrides_the_general_one(tmp_path):
  recipe = tmp_path / "recipe.py"
  text = (
    "from configs.t5 import base\nLAPTOP = {'batch_size': 16, '%s': 3}\nget_config = "
    "base.get_config\n"
  )
  recipe.write_text(text % "model.design.softcap")
  assert recipes.load(str(recipe)).batch_size == 128
  config = recipes.load(f"{recipe}:small,tiny", ["model.dropout=0.2"])
  assert config.batch_size == 16
  assert config.model.design.softcap == 3
  assert config.model.dropout == 0.2
  assert config.model.variant == "t5-v1_1-tiny"
  recipe.write_text(text % "totl_steps")
  with pytest.raises(
    UserError,
    match="LAPTOP.'totl_steps'.: config has no key 'totl_steps' .did you mean 'total_steps'",
  ):
    recipes.load(f"{recipe}:tiny")


@pytest.mark.parametrize("slot", ["mesh", "schedule", "task"])
@pytest.mark.parametrize(
  "text", ['={"__class__": 1}', ".__class__=1", '={"a": {"__class__": [[]]}}', ".a.__dict__.b=1"]
)
def test_names_that_python_reserves_are_refused(slot, text):
  with pytest.raises(UserError, match=f"--config.{slot}.*found") as error:
    recipes.load("tests/recipes/nano.py", [slot + text])
  assert "\n" not in str(error.value)


def test_a_recipe_that_contains_itself_is_refused(tmp_path):
  lines = [
    "from t5x_like.config import defaults",
    "def get_config():",
    "  config, task = defaults(), {}",
  ]
  lines += ["  task['a'] = task", "  config.task = task", "  return config"]
  (tmp_path / "own.py").write_text("\n".join(lines) + "\n")
  with pytest.raises(UserError, match="own.py: config.task.* contains itself"):
    recipes.load(str(tmp_path / "own.py"))
