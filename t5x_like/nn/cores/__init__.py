"""Attention cores: `(q, k, v, mask, bias) -> out`. A core that cannot honour its arguments raises, naming itself."""
