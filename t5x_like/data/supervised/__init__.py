"""Supervised tasks: fields of records become ids, and ids become packed rows."""
