"""Parameter counts of all published sizes equal the published counts.

Rows are (family, variant, count, relative tolerance). The tolerance is 0 for a count that is
published exactly, or of a published checkpoint. Otherwise it is half of the last published digit.
"""

import jax
import pytest
from flax import nnx

import more
import t5x_like.models
from t5x_like import slots
from t5x_like.models import t5
from t5x_like.nn import params
from tests import topics


def build_abstract(network, variant: str, **arguments):
  """Return a model without weights."""
  return jax.eval_shape(lambda: network(nnx.Rngs(params=0), variant=variant, **arguments))


M = 10**6
B = 10**9

T5_MILLIONS = {
  "t5-base": 222.90,
  "t5-large": 737.67,
  "t5-v1_1-base": 247.58,
  "t5-v1_1-large": 783.15,
  "mt5-small": 300.18,
  "mt5-base": 582.40,
  "byt5-small": 299.64,
  "byt5-base": 581.65,
  "t5-base-6": 123.79,  # t5-base without six layers of 7,079,424 and six of 9,439,488
  # t5-base without the 12 x 7,079,424 of its encoder, its final norm and its table
  "t5-base-shared": 137.95,
}
T5_BILLIONS = {
  "t5-3b": 2.852,
  "t5-11b": 11.307,
  "t5-v1_1-xl": 2.850,
  "t5-v1_1-xxl": 11.135,
  "mt5-large": 1.230,
  "mt5-xl": 3.743,
  "mt5-xxl": 12.921,
  "byt5-large": 1.228,
  "byt5-xl": 3.738,
  "byt5-xxl": 12.907,
}
T5_SIZES = [
  ("t5", "t5-small", 60_506_624, 0),
  ("t5", "t5-v1_1-small", 76_961_152, 0),
  *(("t5", name, size * M, 0.005 / size) for name, size in T5_MILLIONS.items()),
  *(("t5", name, size * B, 0.0005 / size) for name, size in T5_BILLIONS.items()),
]

SIZES = [
  ("gpt", "gpt1", 117 * M, 0.005),  # Radford et al. 2018 as cited in Radford et al. 2019, table 2
  ("gpt", "gpt2", 124_439_808, 0),
  ("gpt", "gpt2-medium", 354_823_168, 0),
  ("gpt", "gpt2-large", 774_030_080, 0),
  ("gpt", "gpt2-xl", 1_557_611_200, 0),
  ("gpt", "gpt3-small", 125 * M, 0.004),  # Brown et al. 2020, table D.1
  ("gpt", "gpt3-medium", 356 * M, 0.0015),
  ("gpt", "gpt3-large", 760 * M, 0.0007),
  ("gpt", "gpt3-xl", 1.320 * B, 0.004),
  ("gpt", "gpt3-2.7b", 2.650 * B, 0.002),
  ("gpt", "gpt3-6.7b", 6.660 * B, 0.001),
  ("gpt", "gpt3-13b", 12.850 * B, 0.0004),
  ("gpt", "gpt3-175b", 174.600 * B, 0.0003),
  ("llama", "llama2-7b", 6_738_415_616, 0),
  ("llama", "llama2-13b", 13_015_864_320, 0),
  ("llama", "llama2-70b", 68_976_648_192, 0),
  ("llama", "llama3.1-8b", 8_030_261_248, 0),
  ("llama", "llama3.1-70b", 70_553_706_496, 0),
  ("llama", "llama3.1-405b", 405_853_388_800, 0),
  ("llama", "mistral-7b-v0.1", 7_241_732_096, 0),
  ("llama", "mistral-7b-v0.2", 7_241_732_096, 0),
  ("llama", "mistral-7b-v0.3", 7_248_023_552, 0),
  ("mixtral", "8x7b", 46_702_792_704, 0),
  ("mixtral", "8x22b", 140.6 * B, 0.0004),
  ("palm", "8b", 8.63 * B, 0.0006),  # Chowdhery et al. 2022, table 1
  ("palm", "62b", 62.50 * B, 0.0001),
  ("palm", "540b", 540.35 * B, 0.00002),
  ("gemma2", "2b", 2_614_341_888, 0),
  ("gemma2", "9b", 9_241_705_984, 0),
  ("gemma2", "27b", 27_227_128_320, 0),
  ("gemma3", "270m", 268_098_176, 0),  # the published checkpoints, without image encoders
  ("gemma3", "1b", 999_885_952, 0),
  ("gemma3", "4b", 3_880_263_168, 0),
  ("gemma3", "12b", 11_766_034_176, 0),
  ("gemma3", "27b", 27_009_346_304, 0),
  ("qwen", "qwen2.5-0.5b", 494_032_768, 0),
  ("qwen", "qwen2.5-1.5b", 1_543_714_304, 0),
  ("qwen", "qwen2.5-3b", 3_085_938_688, 0),
  ("qwen", "qwen2.5-7b", 7_615_616_512, 0),
  ("qwen", "qwen2.5-14b", 14_770_033_664, 0),
  ("qwen", "qwen2.5-32b", 32_763_876_352, 0),
  ("qwen", "qwen2.5-72b", 72_706_203_648, 0),
  ("qwen", "qwen3-0.6b", 596_049_920, 0),
  ("qwen", "qwen3-1.7b", 1_720_574_976, 0),
  ("qwen", "qwen3-4b", 4_022_468_096, 0),
  ("qwen", "qwen3-8b", 8_190_735_360, 0),
  ("qwen", "qwen3-14b", 14_768_307_200, 0),
  ("qwen", "qwen3-32b", 32_762_123_264, 0),
  ("qwen", "qwen3-30b-a3b", 30_532_122_624, 0),
  ("qwen", "qwen3-235b-a22b", 235_093_634_560, 0),
  # The published checkpoint, without its block that predicts the second token.
  ("deepseek", "v3", 671_026_419_200, 0),
  ("gpt_oss", "20b", 20_914_757_184, 0),  # the published checkpoints
  ("gpt_oss", "120b", 116_829_156_672, 0),
  ("olmo", "olmo2-1b", 1_484_916_736, 0),
  ("olmo", "olmo2-7b", 7_298_617_344, 0),
  ("olmo", "olmo2-13b", 13_716_198_400, 0),
  ("olmo", "olmo2-32b", 32_234_279_936, 0),
  ("olmo", "olmo3-7b", 7_298_011_136, 0),
  ("bloom", "560m", 559_214_592, 0),
  ("bloom", "1b1", 1_065_314_304, 0),
  ("bloom", "1b7", 1_722_408_960, 0),
  ("bloom", "3b", 3_002_557_440, 0),
  ("bloom", "7b1", 7_069_016_064, 0),
  ("bloom", "176b", 176_247_271_424, 0),
  ("mpt", "7b", 6_649_286_656, 0),
  ("mpt", "30b", 30 * B, 0.02),
  ("neox", "neox-20b", 20_554_567_680, 0),
  ("neox", "pythia-70m", 70_426_624, 0),
  ("neox", "pythia-160m", 162_322_944, 0),
  ("neox", "pythia-410m", 405_334_016, 0),
  ("neox", "pythia-1b", 1_011_781_632, 0),
  ("neox", "pythia-1.4b", 1_414_647_808, 0),
  ("neox", "pythia-2.8b", 2_775_208_960, 0),
  ("neox", "pythia-6.9b", 6_857_302_016, 0),
  ("neox", "pythia-12b", 11_846_072_320, 0),
  ("opt", "125m", 125_239_296, 0),  # the published checkpoints
  ("opt", "350m", 331_196_416, 0),
  ("opt", "1.3b", 1_315_758_080, 0),
  ("opt", "2.7b", 2_651_596_800, 0),
  ("opt", "6.7b", 6_658_473_984, 0),
  ("opt", "13b", 12_853_473_280, 0),
  ("opt", "30b", 30 * B, 0.0017),  # Zhang et al. 2022, table 1
  ("opt", "66b", 66 * B, 0.0076),
  ("opt", "175b", 175 * B, 0.0029),
  ("xglm", "564m", 564_463_616, 0),  # the published checkpoints, the last one by its name
  ("xglm", "1.7b", 1_732_907_008, 0),
  ("xglm", "2.9b", 2_941_505_536, 0),
  ("xglm", "7.5b", 7.5 * B, 0.0067),
  ("falcon", "7b", 6_921_720_704, 0),
  ("falcon", "40b", 41_303_293_952, 0),
  ("falcon", "180b", 180 * B, 0.01),
  ("command_r", "aya-23-8b", 8_028_033_024, 0),
  ("command_r", "command-r", 34_980_831_232, 0),
  ("command_r", "command-r-08-2024", 32_296_476_672, 0),
  ("command_r", "command-r-plus", 103_810_674_688, 0),
  *T5_SIZES,
  # Fedus et al. 2022 for 1.1B (16 experts) to 14.7B, large, xxl and c; the others by the formula
  ("switch", "switch-base-8", 619.3 * M, 0.0002),
  ("switch", "switch-base-16", 1.07 * B, 0.009),
  ("switch", "switch-base-32", 1.98 * B, 0.005),
  ("switch", "switch-base-64", 3.79 * B, 0.0026),
  ("switch", "switch-base-128", 7.4 * B, 0.0067),
  ("switch", "switch-base-256", 14.7 * B, 0.0034),
  ("switch", "switch-large-128", 26.3 * B, 0.0019),
  ("switch", "switch-xxl-128", 395 * B, 0.0012),
  ("switch", "switch-c-2048", 1571 * B, 0.0003),
  # Vaswani et al. 2017, table 3, whose 37,000 pieces are rounded
  ("transformer", "transformer-base", 65 * M, 0.031),
  ("transformer", "transformer-big", 213 * M, 0.006),
  # The checkpoints keep the bias of the output as a buffer.
  ("bart", "bart-base", 139_420_416 + 50_265, 0),
  ("bart", "bart-large", 406_291_456 + 50_265, 0),
  ("bart", "mbart-large-cc25", 610_851_840 + 250_027, 0),
  # Touvron et al. 2021, table 1, to the last digit by their code
  ("vit", "vit-ti16", 5_717_416, 0),
  ("vit", "vit-s16", 22_050_664, 0),
  ("vit", "vit-b16", 86_567_656, 0),
  ("vit", "vit-b32", 88_224_232, 0),
  ("vit", "vit-l16", 304_326_632, 0),
  ("vit", "vit-l32", 306_535_400, 0),
  ("vit", "vit-r26-s32", 36_431_912, 0),  # as timm counts them, with 1000 classes
  ("vit", "vit-r50-b16", 98_659_112, 0),
  ("vit", "vit-r50-l32", 328_994_856, 0),
  ("clip", "clip-b32", 151_277_313, 0),  # the published checkpoints
  ("clip", "clip-b16", 149_620_737, 0),
  ("clip", "clip-l14", 427_616_513, 0),
  ("clip", "clip-l14-336", 427_944_193, 0),
  # Dinov2Model less its mask token; and a classifier of both
  ("dinov2", "dinov2-s14", 22_056_576 - 384 + 769_000, 0),
  ("dinov2", "dinov2-b14", 86_580_480 - 768 + 1_537_000, 0),
  ("dinov2", "dinov2-l14", 304_368_640 - 1_024 + 2_049_000, 0),
  ("dinov2", "dinov2-g14", 1_136_480_768 - 1_536 + 3_073_000, 0),
  ("dinov2", "dinov2-s14-registers", 22_058_112 - 384 + 769_000, 0),
  ("siglip", "siglip-b16", 203_155_970, 0),  # the published checkpoints
  ("siglip", "siglip-l16-256", 652_150_786, 0),
  ("siglip", "siglip-so400m", 877_960_498, 0),
  # As torchvision counts them, with the statistics of batch norm.
  ("resnet", "resnet-18", 11_689_512 + 2 * 4_800, 0),
  ("resnet", "resnet-50", 25_557_032 + 2 * 26_560, 0),
  # Liu et al. 2022, table 1, to the last digit by `transformers`
  ("convnext", "convnext-t", 28_589_128, 0),
  ("convnext", "convnext-s", 50_223_688, 0),
  ("convnext", "convnext-b", 88_591_464, 0),
  ("convnext", "convnext-l", 197_767_336, 0),
  ("convnext", "convnext-xl", 350_196_968, 0),
  ("vit", "vit-h14", 632_045_800, 0),  # Dosovitskiy et al. 2021, table 1
  ("swin", "swin-t", 28_288_354, 0),  # Liu et al. 2021, table 1, to the last digit by their code
  ("swin", "swin-s", 49_606_258, 0),
  ("swin", "swin-b", 87_768_224, 0),
  ("swin", "swin-l", 196_532_476, 0),
  ("swin_v2", "swin-v2-t", 28_347_154, 0),  # as `transformers` counts them
  ("swin_v2", "swin-v2-s", 49_728_418, 0),
  ("swin_v2", "swin-v2-b", 87_918_816, 0),
  # 24, 35 and 52 M in Li et al. 2022, table 1; to the last digit by their code
  *((*names, *size) for names, size in topics.cases("SIZES").items()),
]


def mark_all_but_the_first_of_each_family(rows):
  """`make test-more` counts the other sizes of a family."""
  counted_families = set()
  marked_rows = []
  for row in rows:
    marked_rows.append(more.later(row) if row[0] in counted_families else row)
    counted_families.add(row[0])
  return marked_rows


@pytest.mark.parametrize(
  "family, variant, expected, tolerance",
  mark_all_but_the_first_of_each_family(SIZES),
  ids=[f"{family}:{variant}" for family, variant, *_ in SIZES],
)
def test_published_count(family, variant, expected, tolerance):
  network = slots.module(family, t5x_like.models).Model
  count = params.count(build_abstract(network, variant))
  assert count == pytest.approx(expected, rel=tolerance, abs=0)


# (family, variant, count, its source; arguments, if the count is of another head or network)
POOLED = {"head": "pooled"}
NO_HEAD = {"head": "none"}
DISCRIMINATOR = {"network": "Discriminator"}
GENERATOR = {"network": "Generator"}
ENCODERS = [
  ("bert", "bert-tiny", 4_433_468, "4.4M, Turc et al. 2019, table 1"),
  ("bert", "bert-mini", 11_267_900, "11.3M, Turc et al. 2019, table 1"),
  ("bert", "bert-small", 29_058_876, "29.1M, Turc et al. 2019, table 1"),
  ("bert", "bert-medium", 41_668_412, "41.7M, Turc et al. 2019, table 1"),
  (
    "bert",
    "bert-base-uncased",
    109_482_240,
    "110M, Devlin et al. 2019, section 3; BertModel",
    POOLED,
  ),
  ("bert", "bert-base-uncased", 110_106_428, "BertForPreTraining"),
  ("bert", "bert-base-cased", 108_310_272, "BertModel", POOLED),
  ("bert", "bert-base-cased", 108_932_934, "BertForPreTraining"),
  ("bert", "bert-base-multilingual-cased", 177_853_440, "BertModel", POOLED),
  ("bert", "bert-base-multilingual-cased", 178_566_653, "179M, its model card; BertForPreTraining"),
  (
    "bert",
    "bert-large-uncased",
    335_141_888,
    "340M, Devlin et al. 2019, section 3; BertModel",
    POOLED,
  ),
  ("bert", "bert-large-uncased", 336_226_108, "BertForPreTraining"),
  ("bert", "bert-large-cased", 334_661_958, "BertForPreTraining"),
  ("roberta", "roberta-base", 124_645_632, "125M, its release; RobertaModel", POOLED),
  ("roberta", "roberta-base", 124_697_433, "RobertaForMaskedLM"),
  ("roberta", "roberta-large", 355_359_744, "355M, its release; RobertaModel", POOLED),
  ("roberta", "roberta-large", 355_412_057, "RobertaForMaskedLM"),
  ("roberta", "xlm-roberta-base", 278_295_186, "XLMRobertaForMaskedLM"),
  ("roberta", "xlm-roberta-large", 560_142_482, "XLMRobertaForMaskedLM"),
  ("electra", "electra-small", 13_549_057, "14M, Clark et al. 2020, table 1", DISCRIMINATOR),
  ("electra", "electra-base", 109_483_009, "110M, Clark et al. 2020, table 1", DISCRIMINATOR),
  ("electra", "electra-large", 335_142_913, "335M, Clark et al. 2020, table 2", DISCRIMINATOR),
  ("electra", "electra-small", 4_620_026, "ElectraForMaskedLM of table 6's sizes", GENERATOR),
  ("electra", "electra-base", 33_740_602, "ElectraForMaskedLM", GENERATOR),
  ("electra", "electra-large", 51_295_290, "ElectraForMaskedLM", GENERATOR),
  ("electra", "electra-small-released", 13_546_682, "ElectraForMaskedLM", GENERATOR),
  (
    "electra",
    "electra-small",
    13_549_057 + 4_620_026 - 3_972_864,
    "both, less the tables they share",
  ),
  ("albert", "albert-base", 11_683_584, "12M, Lan et al. 2020, table 1; AlbertModel", POOLED),
  ("albert", "albert-large", 17_683_968, "18M, Lan et al. 2020, table 1; AlbertModel", POOLED),
  ("albert", "albert-xlarge", 58_724_864, "60M, Lan et al. 2020, table 1; AlbertModel", POOLED),
  ("albert", "albert-xxlarge", 222_595_584, "235M, Lan et al. 2020, table 1; AlbertModel", POOLED),
  ("deberta", "deberta-v3-xsmall", 70_682_112, "22M and 48M of the table; DebertaV2Model", NO_HEAD),
  ("deberta", "deberta-v3-small", 141_304_320, "44M and 98M; DebertaV2Model", NO_HEAD),
  (
    "deberta",
    "deberta-v3-base",
    183_831_552,
    "86M and 98M, He et al. 2021; DebertaV2Model",
    NO_HEAD,
  ),
  (
    "deberta",
    "deberta-v3-large",
    434_012_160,
    "304M and 131M, He et al. 2021; DebertaV2Model",
    NO_HEAD,
  ),
  (
    "deberta_rtd",
    "deberta-v3-base",
    184_422_913 + 142_024_548,
    "6 layers with an MLM head, and 12 with a head",
  ),
  ("xlnet", "xlnet-base", 116_718_336, "117M; XLNetModel", NO_HEAD),
  ("xlnet", "xlnet-large", 360_268_800, "360M; XLNetModel", NO_HEAD),
  ("xlm", "xlm-ende", 142_422_203, "XLMWithLMHeadModel"),
  (
    "xlm",
    "xlm-xnli15",
    249_071_384,
    "249M, Lample and Conneau 2019, their release; XLMWithLMHeadModel",
  ),
  ("xlm", "xlm-17", 571_696_960, "570M, their release; XLMWithLMHeadModel"),
  (
    "modernbert",
    "modernbert-base",
    149_655_232,
    "149M, Warner et al. 2024, section 2.1; ModernBertForMaskedLM",
  ),
  (
    "modernbert",
    "modernbert-large",
    395_881_664,
    "395M, Warner et al. 2024, section 2.1; ModernBertForMaskedLM",
  ),
  *((*names, *size) for names, size in topics.cases("ENCODER_SIZES").items()),
]
IDS = [":".join([*row[:2], *(str(value) for value in dict(*row[4:]).values())]) for row in ENCODERS]


@pytest.mark.parametrize(
  "row", [more.later((row,)) if i % 3 else row for i, row in enumerate(ENCODERS)], ids=IDS
)
def test_published_count_of_an_encoder(row):
  family, variant, expected, _, *options = row
  arguments = dict(*options)
  network = getattr(slots.module(family, t5x_like.models), arguments.pop("network", "Model"))
  assert params.count(build_abstract(network, variant, **arguments)) == expected


UMT5_SIZES = ("small", "base", "xl", "xxl")


@pytest.mark.parametrize("size", UMT5_SIZES)
def test_umt5_equals_mt5_with_more_tokens_and_a_position_table_in_every_layer(size):
  dims = t5.VARIANTS[f"mt5-{size}"].dims
  tokens = 2 * (256_384 - 250_112) * dims.embed
  tables = 2 * (dims.layers - 1) * 32 * dims.heads
  mt5_count = params.count(build_abstract(t5.Model, f"mt5-{size}"))
  umt5_count = params.count(build_abstract(t5.Model, f"umt5-{size}"))
  assert umt5_count == mt5_count + tokens + tables


def test_every_published_variant_of_t5_has_a_count():
  our_variants = {"t5-tiny", "t5-mini", "t5-v1_1-micro", "t5-v1_1-tiny", "t5-v1_1-mini"}
  variants_of_tests = {"nano", "odd"}
  published_variants = {variant for _, variant, *_ in T5_SIZES}
  published_variants |= {f"umt5-{size}" for size in UMT5_SIZES}
  assert set(t5.VARIANTS) - variants_of_tests == our_variants | published_variants
