"""Switch Transformers (Fedus et al. 2022)."""
