"""Every family hides what it must, and is the same function in every way of computing it."""

import numpy as np
import pytest

import more
from tests.models import families

CASES = families.representatives()
FIRST = list({case.family: case for case in reversed(CASES)}.values())[::-1]
# `make test` shows the properties on these, which have every trait of the first variants between
# them; test_designs.py has every cell of a design, and test_golden.py the outputs of every family.
COVERING = families.covering(FIRST)


def cases(candidates):
  marked = [case if case in COVERING else more.later(case) for case in candidates]
  return pytest.mark.parametrize("case", marked, ids=[case.name for case in candidates])


def check_sight(case):
  """Decoders see themselves and what came before, by gradient; encoders see everything."""
  reach = families.forward(case)["reach"]
  near = np.eye(len(reach), dtype=bool) | np.eye(len(reach), k=-1, dtype=bool)
  visible = np.ones_like(near)
  if case.sides[-1] == "decoder":
    visible = np.tri(len(reach), dtype=bool)
  is_bounded = any(case.variant.design.windows) or case.core in families.BOUNDED_CORES
  certain = near if is_bounded else visible
  assert (reach[~visible] == 0).all(), "an output depends on a token it may not see"
  assert (reach[certain] > 0).all(), "an output does not depend on a token it may see"


def check_padding(case):
  """Padding changes nothing: neither how much of it there is, nor what it holds."""
  logits = families.forward(case)
  if "short" in logits:
    n = logits["short"].shape[1]
    families.assert_close(logits["apart"][0, :n], logits["short"][0])
  assert all(np.isfinite(x).all() for x in logits.values())


def check_packing(case):
  """Two sequences in one row, with garbage behind them, are the two sequences in rows of their
  own."""
  if case.lacks("packing"):
    return
  logits = families.forward(case)
  a, b = families.LENGTHS[case.sides[-1]][1]
  families.assert_close(logits["packed"][0, :a], logits["apart"][0, :a])
  families.assert_close(logits["packed"][0, a : a + b], logits["apart"][1, :b])


def check_decoding(case):
  """The logits of tokens fed through a cache are the forward pass's."""
  if case.decodes:
    logits = families.forward(case)
    families.assert_close(logits["decode_logits"], logits["whole"])


def check_bfloat16(case):
  """bfloat16 has steps of 2**-8: half of the tokens stay within 4% of the spread of the logits, and
  all but those that a router sends elsewhere within 12%."""
  low = families.forward(case)["bfloat16"]
  full = families.forward(case)["whole"]
  assert low.dtype == np.float32
  assert (low != full).any()
  errors_BT = np.sqrt(np.mean((low - full).reshape(*full.shape[:2], -1) ** 2, axis=-1))
  relative_errors = errors_BT / full.std()
  assert np.median(relative_errors) < 0.04
  if not case.variant.design.experts:
    assert relative_errors.max() < 0.12


CHECKS = [check_sight, check_padding, check_packing, check_decoding, check_bfloat16]


@cases(CASES)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_every_family_has_the_property(check, case):
  check(case)


WAYS = (*families.FORMS, "sharded")
PAIRS = [(WAYS[(place + turn) % 3], case) for turn in range(3) for place, case in enumerate(FIRST)]
USUAL_WAYS = {(str(WAYS[place % 3]), case) for place, case in enumerate(COVERING)}
SHOWN = [pair if (str(pair[0]), pair[1]) in USUAL_WAYS else more.later(pair) for pair in PAIRS]


def id_of(argument):
  if isinstance(argument, families.Case):
    return argument.name
  return argument if argument == "sharded" else "-".join(argument.values())


@pytest.mark.parametrize("way, case", SHOWN, ids=id_of)
def test_every_way_of_computing_is_the_same_function(way, case):
  """The covering families in one way each; `make test-more` has the others. test_designs.py covers
  their parts."""
  form = {"rules": families.rules(case)} if way == "sharded" else way
  families.assert_same(families.value_and_gradients(case, **form), families.plain(case))


@cases(FIRST)
def test_every_parameter_is_trained(case):
  for name, gradient in families.plain(case)[1].items():
    unread = name in families.PRETRAINING.get(case.family, ())
    assert np.isfinite(gradient).all(), name
    assert (np.abs(gradient).max() == 0) == unread, name
