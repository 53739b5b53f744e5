"""Functions from raw tokens to the features of examples."""

# Begins the name scope of a user's preprocessor, see `user_defined.py`.
SCOPE_PREFIX = "own_preprocessor-"
