"""Ends of rows at strings of text, found on the device, in the bytes of tokens."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np


class StopStrings:
  """A test of whether a token completes one of some strings, which may begin and end within tokens.

  The automaton of Aho and Corasick (1975) reads the strings byte by byte; its table here has a step
  for every token and state. Tokens that lead alike from every state share a row, so the table is
  small. A string is in at most as many tokens as it has bytes, so a step reads no more than these,
  and nothing is carried from step to step. (A string with tokens without text between its own may
  escape the device, never `through_stop`.)

  Args:
    strings: UTF-8, none of them empty.
    tokens: the bytes of each id; none for ids that stand for no text.
  """

  def __init__(self, strings: Sequence[bytes], tokens: Sequence[bytes]):
    self.longest = max(map(len, strings))
    states = list(dict.fromkeys(string[:end] for string in strings for end in range(len(string))))
    self._done = len(states)
    next_SB = np.zeros((self._done + 1, 256), np.int32)
    next_SB[self._done] = self._done
    for state, begun in enumerate(states):
      for byte in set(b"".join(strings)):
        read = begun + bytes([byte])
        suffixes = (read[start:] for start in range(len(read) + 1))
        ended = any(read.endswith(string) for string in strings)
        next_SB[state, byte] = (
          self._done
          if ended
          else next(states.index(string) for string in suffixes if string in states)
        )
    state_VS = np.tile(np.arange(self._done + 1, dtype=np.int32), (len(tokens), 1))
    length_V = np.array([len(string) for string in tokens])
    for place in range(length_V.max(initial=0)):
      longer = np.flatnonzero(length_V > place)
      byte_N1 = np.array([tokens[i][place] for i in longer])[:, None]
      state_VS[longer] = next_SB[state_VS[longer], byte_N1]
    kinds = {np.arange(self._done + 1, dtype=np.int32).tobytes(): 0}  # of tokens without text
    self._kind_V = np.array(
      [kinds.setdefault(row.tobytes(), len(kinds)) for row in state_VS], np.int32
    )
    self._next_KS = np.frombuffer(b"".join(kinds), np.int32).reshape(len(kinds), -1)

  def __call__(self, tokens_BT: jax.Array, index: jax.Array) -> jax.Array:
    """Return bool [B]: whether the token at place `index` of a row completes a string, with the
    tokens before it."""
    padded = jnp.pad(tokens_BT, ((0, 0), (self.longest - 1, 0)), constant_values=-1)
    window_BW = jax.lax.dynamic_slice_in_dim(padded, index, self.longest, axis=1)
    known_BW = (window_BW >= 0) & (window_BW < len(self._kind_V))
    kind_BW = jnp.where(known_BW, jnp.asarray(self._kind_V)[jnp.where(known_BW, window_BW, 0)], 0)
    table = jnp.asarray(self._next_KS.reshape(-1))
    width = self._next_KS.shape[1]
    read = lambda state_B, kind_B: (table[kind_B * width + state_B], None)  # noqa: E731
    state_B, _ = jax.lax.scan(read, jnp.zeros_like(kind_BW[:, 0]), kind_BW.T)
    return state_B == self._done

  def through_stop(self, ids: Sequence[int]) -> Sequence[int]:
    """Return the ids up to the first that completes a string, with it; all if none does."""
    state = 0
    for place, i in enumerate(ids):
      state = self._next_KS[self._kind_V[i] if i < len(self._kind_V) else 0, state]
      if state == self._done:
        return ids[: place + 1]
    return ids
