"""Every family respects masks, padding and packing, and computes the same in every form."""

import numpy as np
import pytest

import more
from tests.models import families

CASES = families.list_representatives()
FIRST = list({case.family: case for case in reversed(CASES)}.values())[::-1]
# `make test` tests the properties on these, which together have every trait of the first variants.
# test_designs.py tests all parts of designs, and test_golden.py the outputs of every family.
COVERING = families.choose_covering(FIRST)


def cases(candidates):
  marked = [case if case in COVERING else more.later(case) for case in candidates]
  return pytest.mark.parametrize("case", marked, ids=[case.name for case in candidates])


def check_visibility(case):
  """Outputs of decoders depend on the token and earlier ones; outputs of encoders on all tokens."""
  reach = families.compute_outputs(case)["reach"]
  near = np.eye(len(reach), dtype=bool) | np.eye(len(reach), k=-1, dtype=bool)
  visible = np.ones_like(near)
  if case.sides[-1] == "decoder":
    visible = np.tri(len(reach), dtype=bool)
  is_bounded = any(case.variant.design.windows) or case.core in families.BOUNDED_CORES
  certain = near if is_bounded else visible
  assert (reach[~visible] == 0).all(), "an output depends on a token it may not see"
  assert (reach[certain] > 0).all(), "an output does not depend on a token it may see"


def check_padding(case):
  """Outputs do not depend on the amount of padding."""
  logits = families.compute_outputs(case)
  if "short_row" in logits:
    n = logits["short_row"].shape[1]
    families.assert_close(logits["separate_rows"][0, :n], logits["short_row"][0])
  assert all(np.isfinite(x).all() for x in logits.values())


def check_packing(case):
  """Two sequences in one row, followed by random tokens, equal the sequences in separate rows."""
  if case.lacks("packing"):
    return
  logits = families.compute_outputs(case)
  a, b = families.LENGTHS[case.sides[-1]][1]
  families.assert_close(logits["packed_row"][0, :a], logits["separate_rows"][0, :a])
  families.assert_close(logits["packed_row"][0, a : a + b], logits["separate_rows"][1, :b])


def check_decoding(case):
  """Logits of decoding with a cache equal the forward pass."""
  if case.decodes:
    logits = families.compute_outputs(case)
    families.assert_close(logits["decode_logits"], logits["full_rows"])


def check_bfloat16(case):
  """Errors in bfloat16, whose steps are 2**-8, are small relative to the spread of the logits.

  Half of the tokens are within 4 %; all are within 12 %, unless a router may choose other experts.
  """
  low = families.compute_outputs(case)["bfloat16"]
  full = families.compute_outputs(case)["full_rows"]
  assert low.dtype == np.float32
  assert (low != full).any()
  errors_BT = np.sqrt(np.mean((low - full).reshape(*full.shape[:2], -1) ** 2, axis=-1))
  relative_errors = errors_BT / full.std()
  assert np.median(relative_errors) < 0.04
  if not case.variant.design.experts:
    assert relative_errors.max() < 0.12


CHECKS = [check_visibility, check_padding, check_packing, check_decoding, check_bfloat16]


@cases(CASES)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_every_family_has_the_property(check, case):
  check(case)


FORMS = (*families.FORMS, "sharded")
# All pairs of a form and a first variant. Each covering case is tested in one form by `make test`.
PAIRS = []
for turn in range(3):
  PAIRS += [(FORMS[(number + turn) % 3], case) for number, case in enumerate(FIRST)]
FAST_PAIRS = {(str(FORMS[number % 3]), case) for number, case in enumerate(COVERING)}
MARKED_PAIRS = [
  pair if (str(pair[0]), pair[1]) in FAST_PAIRS else more.later(pair) for pair in PAIRS
]


def format_id(argument):
  if isinstance(argument, families.Case):
    return argument.name
  return argument if argument == "sharded" else "-".join(argument.values())


@pytest.mark.parametrize("form, case", MARKED_PAIRS, ids=format_id)
def test_gradients_are_equal_in_every_form_and_sharded(form, case):
  options = {"rules": families.rules(case)} if form == "sharded" else form
  actual = families.value_and_gradients(case, **options)
  families.assert_same(actual, families.plain_value_and_gradients(case))


@cases(FIRST)
def test_every_parameter_has_a_gradient(case):
  for name, gradient in families.plain_value_and_gradients(case)[1].items():
    unread = name in families.UNTRAINED.get(case.family, ())
    assert np.isfinite(gradient).all(), name
    assert (np.abs(gradient).max() == 0) == unread, name
