"""End rows at stop strings: test on the device whether a token completes one of them."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np


class StopStrings:
  """A test of whether a token completes one of some strings, which may begin and end within tokens.

  The automaton of Aho and Corasick (1975) reads the strings byte by byte; its table here has a step
  for every token and state. Tokens with the same transitions share a row, so the table is small. A
  string spans at most as many tokens as it has bytes, so a step reads only that many of the last
  tokens, and no state is carried from step to step. (If tokens without text are between the tokens
  of a string, the device may miss it; `through_stop` does not.)

  Args:
    strings: UTF-8, none of them empty.
    tokens: the bytes of each id; empty for ids without text.
  """

  def __init__(self, strings: Sequence[bytes], tokens: Sequence[bytes]):
    self.longest = max(map(len, strings))
    next_SB = _build_automaton(strings)
    self._done = len(next_SB) - 1
    state_VS = _read_tokens(next_SB, tokens)
    no_text_S = np.arange(len(next_SB), dtype=np.int32)  # a token without text changes no state
    kinds = {no_text_S.tobytes(): 0}
    kind_of_token = []
    for state_S in state_VS:
      kind = kinds.setdefault(state_S.tobytes(), len(kinds))
      kind_of_token.append(kind)
    self._kind_V = np.array(kind_of_token, np.int32)
    self._next_KS = np.frombuffer(b"".join(kinds), np.int32).reshape(len(kinds), -1)

  def __call__(self, tokens_BT: jax.Array, index: jax.Array) -> jax.Array:
    """Return bool [B]: whether the token at `index` of a row completes a string.

    The string may begin in the tokens before it.
    """
    padded = jnp.pad(tokens_BT, ((0, 0), (self.longest - 1, 0)), constant_values=-1)
    window_BW = jax.lax.dynamic_slice_in_dim(padded, index, self.longest, axis=1)
    has_text_BW = (window_BW >= 0) & (window_BW < len(self._kind_V))
    kind_V = jnp.asarray(self._kind_V)
    kind_BW = kind_V[jnp.where(has_text_BW, window_BW, 0)]
    kind_BW = jnp.where(has_text_BW, kind_BW, 0)
    table = jnp.asarray(self._next_KS.reshape(-1))
    states = self._next_KS.shape[1]

    def read_token(state_B, kind_B):
      return table[kind_B * states + state_B], None

    start_B = jnp.zeros_like(kind_BW[:, 0])
    state_B, _ = jax.lax.scan(read_token, start_B, kind_BW.T)
    return state_B == self._done

  def through_stop(self, ids: Sequence[int]) -> Sequence[int]:
    """Return the ids up to and including the first that completes a string; all if none does."""
    state = 0
    for index, token in enumerate(ids):
      kind = self._kind_V[token] if token < len(self._kind_V) else 0
      state = self._next_KS[kind, state]
      if state == self._done:
        return ids[: index + 1]
    return ids


def _build_automaton(strings: Sequence[bytes]) -> np.ndarray:
  """Return the automaton that finds the strings: int32 [states, 256], the next state of each byte.

  In state 0, nothing of a string has been read. The last state, which is never left, has read a
  whole string.
  """
  prefixes = []
  for string in strings:
    prefixes += [string[:end] for end in range(len(string))]
  states = {prefix: state for state, prefix in enumerate(dict.fromkeys(prefixes))}
  done = len(states)
  next_SB = np.zeros((done + 1, 256), np.int32)
  next_SB[done] = done
  for prefix, state in states.items():
    for byte in set(b"".join(strings)):
      text = prefix + bytes([byte])
      if any(text.endswith(string) for string in strings):
        next_SB[state, byte] = done
      else:
        next_SB[state, byte] = _longest_suffix_state(text, states)
  return next_SB


def _longest_suffix_state(text: bytes, states: dict[bytes, int]) -> int:
  """Return the state of the longest suffix of `text` that begins a string."""
  start = 0
  while text[start:] not in states:
    start += 1
  return states[text[start:]]


def _read_tokens(next_SB: np.ndarray, tokens: Sequence[bytes]) -> np.ndarray:
  """Return the state after each token from each state: int32 [V, states]."""
  states = len(next_SB)
  state_VS = np.tile(np.arange(states, dtype=np.int32), (len(tokens), 1))
  length_V = np.array([len(token) for token in tokens])
  for index in range(length_V.max(initial=0)):
    longer_N = np.flatnonzero(length_V > index)
    byte_N = np.array([tokens[token][index] for token in longer_N])
    state_VS[longer_N] = next_SB[state_VS[longer_N], byte_N[:, None]]
  return state_VS
