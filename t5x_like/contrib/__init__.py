"""Topics that only some recipes need, one a folder with all its parts.

The folders of a topic extend the packages of the same name: `contrib/retrieval/objectives/` adds
objectives, `tasks/` tasks, `evals/` evaluators, `models/` families (`slots.names`). The package
outside imports nothing from here, and topics import nothing from each other, so that a folder can
be deleted, with its tests in `tests/contrib/` and its recipes.
"""
