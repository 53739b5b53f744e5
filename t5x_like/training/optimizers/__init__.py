"""Further optimizers: one a file, whose `make` takes the schedule and its own arguments
(`config.optimizer.name`)."""
