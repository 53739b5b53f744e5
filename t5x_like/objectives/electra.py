"""ELECTRA: a generator fills in masked tokens, a discriminator detects the replaced ones."""

import dataclasses

import jax
import jax.numpy as jnp

from t5x_like.nn.dims import subkey
from t5x_like.objectives._cross_entropy import sample_tokens
from t5x_like.objectives._losses import (
  Batch,
  EncoderTargets,
  Sums,
  add_auxiliary,
  masked_targets,
  spread_evenly,
  token_losses,
)

_EVALUATION_KEY = 0


@dataclasses.dataclass(frozen=True)
class Objective(EncoderTargets):
  """The generator's mean MLM loss + 50 * the discriminator's mean loss (Clark et al. 2020).

  The first mean is over masked tokens, the second over all tokens (section 2 and appendix A). The
  step samples the generator's tokens, as the argmax of its logits plus Gumbel noise, without
  gradient. A correct guess counts as original. Evaluation samples with a fixed key.

  The two means have different denominators; as in `objectives.mlm`, `prepare` weights every token
  of the global batch so that one division suffices.

  Attributes:
    discriminator: weight of the second mean.
    temperature: sampling temperature.
  """

  outputs = {"generator_logits": 3, "logits": 2}
  unit = "nats per target token"
  likelihood = True  # of the generator
  reported_sums = (
    *EncoderTargets.reported_sums,
    "discriminator_loss",
    "discriminator_accuracy",
    "replaced",
  )

  discriminator: float = 50.0
  temperature: float = 1.0

  def prepare(self, batch: Batch, model) -> Batch:
    """Add `discriminator_weights` float32 [B, S]: masked tokens per real token, 0 on padding.

    Without `encoder_segment_ids`, padding has the model's padding id, as in its attention.
    """
    pad = model.variant.tokens.pad
    if "encoder_segment_ids" in batch:
      real_BS = batch["encoder_segment_ids"] > 0
    elif pad is not None:
      real_BS = batch["encoder_input_tokens"] != pad
    else:
      real_BS = jnp.ones_like(batch["encoder_input_tokens"], bool)
    weights_BS = spread_evenly(jnp.sum(batch["encoder_loss_weights"]), real_BS.astype(jnp.float32))
    return batch | {"discriminator_weights": weights_BS}

  def __call__(self, model, batch: Batch, key: jax.Array | None = None) -> tuple[jax.Array, Sums]:
    """Run both networks on a batch.

    Args:
      model: a model of `models.electra`, with `generate` and `discriminate`.
      batch: the model's features, `encoder_target_tokens` int32 [B, S] and `encoder_loss_weights`
        float32 [B, S]; with `encoder_masked_positions` int32 [B, K] the generator's logits are
        computed there only.
      key: key of dropout and sampling; None evaluates.

    Returns:
      (loss sum, sums): `loss`, `z_loss`, `correct`, `weights` of the generator; over all tokens
      `discriminator_loss`, `discriminator_accuracy` and `discriminator_weights`, `replaced` and
      `replaced_weights`.
    """
    if "discriminator_weights" not in batch:
      batch = self.prepare(batch, model)
    tokens_BS = batch["encoder_input_tokens"]
    weights_BS = batch["encoder_loss_weights"]
    targets_BK, weights_BK = masked_targets(batch)
    generated = model.generate(batch, subkey(key, 0))
    loss, sums = token_losses(generated["logits"], targets_BK, weights_BK, 0.0, 0.0)
    loss, sums = add_auxiliary(loss, sums, generated)
    sampling_key = jax.random.key(_EVALUATION_KEY) if key is None else subkey(key, 1)
    sampled_BS = sample_tokens(generated["logits"], sampling_key, self.temperature)
    if "encoder_masked_positions" in batch:  # put each row's K samples at their positions
      positions = jnp.arange(tokens_BS.shape[0])[:, None], batch["encoder_masked_positions"]
      # unused slots point to [CLS], which is never masked
      sampled_BS = tokens_BS.at[positions].set(sampled_BS)
    masked_BS = weights_BS > 0
    replaced_BS = (masked_BS & (sampled_BS != batch["encoder_target_tokens"])).astype(jnp.float32)
    corrupted = batch | {"encoder_input_tokens": jnp.where(masked_BS, sampled_BS, tokens_BS)}
    discriminated = model.discriminate(corrupted, subkey(key, 2))
    logits_BS = discriminated["logits"].astype(jnp.float32)
    token_weights_BS = batch["discriminator_weights"]
    # -log sigmoid(x) for replaced tokens, -log sigmoid(-x) for the others
    cost_BS = jax.nn.softplus(logits_BS) - replaced_BS * logits_BS
    real_BS = (token_weights_BS > 0).astype(jnp.float32)
    discriminator_sums = {
      "loss": jnp.sum(cost_BS * real_BS),
      "accuracy": jnp.sum(((logits_BS > 0) == (replaced_BS > 0)) * real_BS),
      "weights": jnp.sum(real_BS),
    }
    auxiliary, _ = add_auxiliary(jnp.zeros(()), sums, discriminated)
    _, discriminator_sums = add_auxiliary(jnp.zeros(()), discriminator_sums, discriminated)
    sums |= {f"discriminator_{name}": value for name, value in discriminator_sums.items()}
    sums |= {"replaced": jnp.sum(replaced_BS * real_BS), "replaced_weights": jnp.sum(real_BS)}
    return loss + self.discriminator * jnp.sum(cost_BS * token_weights_BS) + auxiliary, sums
