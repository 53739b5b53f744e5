"""Prediction with a trained model: from texts to token rows, to answers, to JSON lines."""
