"""T5 (Raffel et al. 2020). `base.py` is the whole table; the other sizes are what differs from it."""
